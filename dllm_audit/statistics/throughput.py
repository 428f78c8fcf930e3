"""Ratios of sums over clusters: tokens per second of one side, and the speed-up of two.

A throughput is a sum of tokens over a sum of seconds, never a mean of ratios. Requests that share forwards
are not independent, and neither are batches of one repeat, because clocks drift between repeats. So whole
clusters are drawn: a repeat with all its batches, a batch with all its requests. Drawing again inside a drawn
cluster would count the variation inside it twice (Davison and Hinkley 1997, section 3.8), so nothing below
the chosen level is drawn.

With few clusters a percentile interval is too narrow: over five repeats one of 95 % covered 92 % in
simulation even with its tails widened. So the interval is the estimate plus and minus Student's t times the
bootstrap standard error, enlarged by sqrt(n / (n - 1)) because n drawn clusters vary less than n new ones do
(Hesterberg 2015, The American Statistician 69:371-386). With fewer than `MINIMUM_CLUSTERS` it is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, sqrt
from typing import Any, Literal

import numpy as np
from scipy.stats import t

Level = Literal["repeat", "batch"]

MINIMUM_CLUSTERS = 5
"""Three or four clusters give 10 or 35 different resamples: too few to say how much clusters vary."""


@dataclass(frozen=True)
class Batch:
    """Requests that shared forwards: their tokens and seconds, added up. One request may be a batch."""

    tokens: float
    seconds: float

    def __post_init__(self) -> None:
        if not (0 <= self.tokens < float("inf") and 0 < self.seconds < float("inf")):
            raise ValueError(f"A batch needs tokens >= 0 and seconds > 0, both finite: {self}.")


Repeat = Sequence[Batch]


@dataclass(frozen=True)
class RatioInterval:
    """A ratio of sums. `low` and `high` are None when unknown; `reason` then says why, else it is empty.

    `level` and `clusters` say what was drawn: an interval over the batches of one repeat does not hold
    between repeats, and a reader has to be told.
    """

    ratio: float
    low: float | None
    high: float | None
    level: Level
    clusters: int
    confidence: float
    reason: str = ""


def throughput_interval(
    repeats: Sequence[Repeat],
    *,
    level: Level = "repeat",
    confidence: float = 0.95,
    draws: int = 4000,
    generator: np.random.Generator,
) -> RatioInterval:
    """Tokens per second over all batches, with a bootstrap interval over repeats or over batches.

    Raises ValueError when a repeat has no batch.
    """
    sums = _clusters(repeats, level)
    ratio = float(_ratio(sums.sum(axis=0)))
    reason = _too_few(len(sums), level)
    if reason:
        return RatioInterval(ratio, None, None, level, len(sums), confidence, reason)
    drawn = generator.integers(len(sums), size=(draws, len(sums)))
    half = _half_width(_ratio(sums[drawn].sum(axis=1)), len(sums), confidence)
    return RatioInterval(ratio, max(0.0, ratio - half), ratio + half, level, len(sums), confidence)


def speedup_interval(
    candidate: Sequence[Repeat],
    baseline: Sequence[Repeat],
    *,
    level: Level = "repeat",
    confidence: float = 0.95,
    draws: int = 4000,
    generator: np.random.Generator,
) -> RatioInterval:
    """Throughput of the candidate over that of the baseline; the i-th clusters of both are drawn together.

    Pairing is what interleaved repeats (A B B A ...) are for: a slow minute meets both sides. The interval is
    symmetric in the logarithm, so exchanging the sides gives the reciprocal one.
    Raises ValueError when the sides have different numbers of clusters, or a cluster produced no tokens.
    """
    ours, theirs = _clusters(candidate, level), _clusters(baseline, level)
    if len(ours) != len(theirs):
        raise ValueError(
            f"A paired speed-up needs as many {level} clusters of the candidate ({len(ours)}) "
            f"as of the baseline ({len(theirs)})."
        )
    if not (ours[:, 0].all() and theirs[:, 0].all()):
        raise ValueError(f"A {level} produced no tokens, so its speed-up is undefined.")
    ratio = float(_ratio(ours.sum(axis=0)) / _ratio(theirs.sum(axis=0)))
    reason = _too_few(len(ours), level)
    if reason:
        return RatioInterval(ratio, None, None, level, len(ours), confidence, reason)
    drawn = generator.integers(len(ours), size=(draws, len(ours)))
    ratios = _ratio(ours[drawn].sum(axis=1)) / _ratio(theirs[drawn].sum(axis=1))
    factor = exp(_half_width(np.log(ratios), len(ours), confidence))
    return RatioInterval(ratio, ratio / factor, ratio * factor, level, len(ours), confidence)


def _clusters(repeats: Sequence[Repeat], level: Level) -> np.ndarray:
    """[clusters, 2]: tokens and seconds of each cluster."""
    if not repeats or not all(repeats):
        raise ValueError("Need at least one repeat, and at least one batch in each.")
    by_repeat = [np.array([[batch.tokens, batch.seconds] for batch in repeat]) for repeat in repeats]
    if level == "batch":
        return np.concatenate(by_repeat)
    return np.stack([batches.sum(axis=0) for batches in by_repeat])


def _ratio(sums: np.ndarray) -> Any:
    """Tokens over seconds: a number for one pair of sums, an array for many."""
    return sums[..., 0] / sums[..., 1]


def _too_few(clusters: int, level: Level) -> str:
    if clusters >= MINIMUM_CLUSTERS:
        return ""
    plural = {"repeat": "repeats", "batch": "batches"}[level]
    return f"unknown: {clusters} of at least {MINIMUM_CLUSTERS} {plural}"


def _half_width(drawn: np.ndarray, clusters: int, confidence: float) -> float:
    standard_error = float(np.std(drawn)) * sqrt(clusters / (clusters - 1))
    return standard_error * float(t.isf((1 - confidence) / 2, clusters - 1))
