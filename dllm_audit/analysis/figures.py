"""A number that says how it came about, and why it is unknown where it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["measured", "derived", "modelled", "estimated", "quoted"]


@dataclass(frozen=True)
class Figure:
    """One number of a report.

    value: None when it is unknown; `reason` then says why.
    low, high: a 95 % interval, or None when that is unknown; `reason` then says why.
    basis: what the interval is over ("requests of this run", "documents"), empty without one.
    """

    value: float | None
    unit: str
    status: Status
    low: float | None = None
    high: float | None = None
    basis: str = ""
    reason: str = ""

    @property
    def has_interval(self) -> bool:
        return self.low is not None and self.high is not None


def ratio(numerator: float, denominator: float, unit: str, status: Status, reason: str) -> Figure:
    """`numerator / denominator`, or an unknown figure with `reason` when the denominator is zero."""
    if not denominator:
        return Figure(None, unit, status, reason=reason)
    return Figure(numerator / denominator, unit, status)
