"""Accuracy under parallelism (AUP): one number for how much accuracy is left as more tokens are decoded per forward.

It is the area under accuracy, weighted down where it falls behind the best method, against tokens per forward. It
counts forwards, whatever they cost, so it says nothing about seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp

STEEPNESS = 3.0
"""Of the weight: 5 % below the best accuracy costs a factor of exp(-0.15) = 0.86."""

TOLERATED_POINTS = 5.0
"""A setting that loses more than so many points to the least parallel one is no longer a use of parallelism."""


@dataclass(frozen=True)
class ParallelPoint:
    """One measured setting: tokens per forward, and accuracy in percent (0..100)."""

    tokens_per_forward: float
    accuracy_percent: float

    def __post_init__(self) -> None:
        if not (0 < self.tokens_per_forward < float("inf") and 0 <= self.accuracy_percent <= 100):
            raise ValueError(f"Need tokens per forward above 0 and an accuracy in 0..100 percent: {self}.")


@dataclass(frozen=True)
class AccuracyUnderParallelism:
    """The area, in percent times tokens per forward. `value` is None where it is refused; `reason` then says why.

    used: the points that count, by tokens per forward.
    """

    value: float | None
    used: tuple[ParallelPoint, ...]
    reason: str = ""


def accuracy_under_parallelism(
    points: Sequence[ParallelPoint], best_accuracy_percent: float
) -> AccuracyUnderParallelism:
    """AUP of one method on one task from its settings, in any order.

    best_accuracy_percent: the best accuracy of *any* method on the task, so a value compares only with those that
    used the same. Points more than 5 points below the least parallel one are dropped; where that is so for the most
    parallel one, AUP is refused. The first point counts unweighted, as in the definition.
    Raises ValueError without points, or for a best accuracy outside 0..100.
    Source: arXiv 2601.07568 and hao-ai-lab/d3LLM@e5bfcac, AUP_leaderboard.
    """
    if not points:
        raise ValueError("AUP needs at least one point.")
    if not 0 < best_accuracy_percent <= 100:
        raise ValueError(
            f"The best accuracy on a task lies above 0 and up to 100 percent, not {best_accuracy_percent}."
        )
    ordered = sorted(points, key=lambda point: point.tokens_per_forward)
    least = ordered[0].accuracy_percent - TOLERATED_POINTS
    used = tuple(point for point in ordered if point.accuracy_percent >= least)
    if used[-1] is not ordered[-1]:
        lost = ordered[0].accuracy_percent - ordered[-1].accuracy_percent
        reason = (
            f"refused: at {ordered[-1].tokens_per_forward:g} tokens per forward {lost:.1f} points are lost, "
            f"and AUP tolerates {TOLERATED_POINTS:g}"
        )
        return AccuracyUnderParallelism(None, used, reason)

    def weighted(point: ParallelPoint) -> float:
        weight = exp(-STEEPNESS * (1 - point.accuracy_percent / best_accuracy_percent))
        return point.accuracy_percent * min(weight, 1.0)

    area = used[0].tokens_per_forward * used[0].accuracy_percent
    for before, after in pairwise(used):
        width = after.tokens_per_forward - before.tokens_per_forward
        area += width * (weighted(before) + weighted(after)) / 2
    return AccuracyUnderParallelism(area, used)
