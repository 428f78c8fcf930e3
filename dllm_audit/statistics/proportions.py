"""One rate, such as the accuracy of a run."""

from __future__ import annotations

from dataclasses import dataclass

from statsmodels.stats.proportion import proportion_confint


@dataclass(frozen=True)
class RateInterval:
    """A rate of successes with its interval, all in 0..1."""

    rate: float
    low: float
    high: float
    trials: int
    confidence: float


def wilson_interval(successes: int, trials: int, confidence: float = 0.95) -> RateInterval:
    """The rate `successes / trials` with Wilson's score interval, which stays inside 0..1 at every rate.

    Raises ValueError without trials, or when `successes` lies outside 0..`trials`.
    Source: Wilson 1927; computed by statsmodels `proportion_confint(method="wilson")`.
    """
    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(f"Cannot take {successes} successes of {trials} trials: need 0 <= successes <= trials >= 1.")
    low, high = proportion_confint(successes, trials, alpha=1 - confidence, method="wilson")
    # At 0 and n successes the formula gives 0 and 1 but for rounding, on either side.
    low = 0.0 if successes == 0 else float(low)
    high = 1.0 if successes == trials else float(high)
    return RateInterval(successes / trials, low, high, trials, confidence)
