"""Speed against quality: which runs does another one beat in both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

FrontVerdict = Literal["on the front", "dominated", "open"]


@dataclass(frozen=True)
class Estimate:
    """A value with its interval; without one, nothing can be decided by it."""

    value: float
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        low, high = self.value if self.low is None else self.low, self.value if self.high is None else self.high
        if not low <= self.value <= high:  # also where one of them is not a number
            raise ValueError(f"An interval holds its value: {self}.")


@dataclass(frozen=True)
class OperatingPoint:
    """One run: `speed` and `quality`, of both of which more is better."""

    name: str
    speed: Estimate
    quality: Estimate


@dataclass(frozen=True)
class FrontPlace:
    """Where one run stands.

    dominated_by: runs that are at least as good in both by value, and better in one. Equal runs do not dominate
    each other. Empty: the run is on the front of the values.
    verdict: what the intervals decide. "dominated": some run is better in both beyond the intervals. "on the front":
    every other run is worse in speed or in quality beyond the intervals. "open" otherwise.
    """

    point: OperatingPoint
    dominated_by: tuple[str, ...]
    verdict: FrontVerdict


def pareto_front(points: Sequence[OperatingPoint]) -> tuple[FrontPlace, ...]:
    """Where each run stands among all of them, in the order given.

    Intervals that do not overlap are a stricter test than one of the difference: of two runs on the same documents a
    paired comparison may decide what is open here.
    Raises ValueError when two runs have the same name.
    """
    names = [point.name for point in points]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"Two runs are called {twice!r}; a front needs a name for each.")
    return tuple(_place(point, [other for other in points if other is not point]) for point in points)


def _place(point: OperatingPoint, others: Sequence[OperatingPoint]) -> FrontPlace:
    by_value = tuple(other.name for other in others if _dominates(other, point))
    if any(_below(point.speed, other.speed) and _below(point.quality, other.quality) for other in others):
        return FrontPlace(point, by_value, "dominated")
    if all(_below(other.speed, point.speed) or _below(other.quality, point.quality) for other in others):
        return FrontPlace(point, by_value, "on the front")
    return FrontPlace(point, by_value, "open")


def _dominates(a: OperatingPoint, b: OperatingPoint) -> bool:
    ours, theirs = (a.speed.value, a.quality.value), (b.speed.value, b.quality.value)
    return ours != theirs and all(x >= y for x, y in zip(ours, theirs, strict=True))


def _below(a: Estimate, b: Estimate) -> bool:
    """Whether `a` is smaller than `b` beyond their intervals."""
    return a.high is not None and b.low is not None and a.high < b.low
