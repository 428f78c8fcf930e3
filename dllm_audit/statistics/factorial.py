"""Two changes switched on and off: what each does to the speed, and whether together they multiply.

"Caching gives 2x and thresholding gives 3x, so together 6x" is a claim about an interaction. On the logarithm of the
speed it is a difference of differences, and its factor is 1 where the two multiply.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dllm_audit.statistics.throughput import Level, RatioInterval, Repeat, contrast_intervals

Together = Literal["multiply", "less than multiply", "more than multiply", "open", "unknown"]

TOLERANCE = 1.10
"""Two changes multiply where the interaction is known to lie within this factor of 1."""


@dataclass(frozen=True)
class FactorialEffects:
    """Factors on the speed, each with its interval.

    first, second: what each change does, as the geometric mean over the other one being off and on.
    interaction: speed with both x speed with neither / (speed with the first x speed with the second).
    together: what that says: "multiply" where the whole interval lies within `tolerance`, "less" or "more" where it
    excludes 1 and reaches beyond the tolerance, "open" otherwise, "unknown" without an interval.
    """

    first: RatioInterval
    second: RatioInterval
    interaction: RatioInterval
    tolerance: float
    together: Together


def factorial_effects(
    neither: Sequence[Repeat],
    first: Sequence[Repeat],
    second: Sequence[Repeat],
    both: Sequence[Repeat],
    *,
    level: Level = "repeat",
    tolerance: float = TOLERANCE,
    confidence: float = 0.95,
    draws: int = 4000,
    generator: np.random.Generator,
) -> FactorialEffects:
    """Both main effects and the interaction of a 2x2 of runs; the i-th clusters of the four are drawn together.

    Each argument is one cell, as `throughput_interval` takes it. With fewer than five repeats (or batches, by
    `level`) the intervals are unknown.
    Raises ValueError for a tolerance of 1 or less, and where `speedup_interval` does.
    Source: Montgomery 2017, Design and Analysis of Experiments, section 6.2, on the logarithm of the speed.
    """
    if not tolerance > 1:
        raise ValueError(f"A tolerance is a factor above 1, such as 1.1, not {tolerance}.")
    one, two, interaction = contrast_intervals(
        [neither, first, second, both],
        [(-0.5, 0.5, -0.5, 0.5), (-0.5, -0.5, 0.5, 0.5), (1, -1, -1, 1)],
        level=level,
        confidence=confidence,
        draws=draws,
        generator=generator,
    )
    return FactorialEffects(
        one, two, interaction, tolerance, how_together(interaction.low, interaction.high, tolerance)
    )


def how_together(low: float | None, high: float | None, tolerance: float = TOLERANCE) -> Together:
    """What the interval of an interaction says, see `FactorialEffects`; None: its ends are unknown."""
    if low is None or high is None:
        return "unknown"
    if 1 / tolerance <= low and high <= tolerance:
        return "multiply"
    if high < 1:
        return "less than multiply"
    return "more than multiply" if low > 1 else "open"
