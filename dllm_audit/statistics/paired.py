"""Two decoders judged on the same documents.

Every document is one pair, so the four counts of `PairedCounts` are the whole evidence. Documents on which
both are right, or both wrong, say nothing about the difference; the discordant ones do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import sqrt

from scipy.optimize import brentq
from scipy.stats import binomtest, norm


@dataclass(frozen=True)
class PairedCounts:
    """Documents by who answered them correctly. Raises ValueError when one is negative or all are zero."""

    both: int
    only_candidate: int
    only_baseline: int
    neither: int

    def __post_init__(self) -> None:
        if min(self.both, self.only_candidate, self.only_baseline, self.neither) < 0 or self.documents == 0:
            raise ValueError(f"Paired counts must be non-negative and not all zero: {self}.")

    @classmethod
    def of(cls, pairs: Iterable[tuple[bool, bool]]) -> PairedCounts:
        """Counts from (candidate correct, baseline correct), one pair a document."""
        table = {(True, True): 0, (True, False): 0, (False, True): 0, (False, False): 0}
        for candidate, baseline in pairs:
            table[bool(candidate), bool(baseline)] += 1
        return cls(*table.values())

    @property
    def documents(self) -> int:
        return self.both + self.only_candidate + self.only_baseline + self.neither

    @property
    def difference(self) -> float:
        """Accuracy of the candidate minus that of the baseline, in -1..1."""
        return (self.only_candidate - self.only_baseline) / self.documents

    @property
    def discordance(self) -> float:
        """Share of the documents on which exactly one of the two is right, in 0..1."""
        return (self.only_candidate + self.only_baseline) / self.documents


@dataclass(frozen=True)
class McNemarTest:
    """`p_value` is two-sided and exact; `discordant` is the number of documents it rests on."""

    p_value: float
    discordant: int


@dataclass(frozen=True)
class DifferenceInterval:
    """Accuracy of the candidate minus that of the baseline, in -1..1, with a two-sided interval."""

    difference: float
    low: float
    high: float
    documents: int
    confidence: float


@dataclass(frozen=True)
class NonInferiority:
    """Whether the candidate loses less than `margin` (in 0..1); `low` is the one-sided bound that decides.

    `non_inferior` False means "not shown", not "shown to be worse": for that look at `inferior`, true when
    even the one-sided upper bound `high` lies below -margin.
    """

    difference: float
    low: float
    high: float
    margin: float
    p_value: float
    alpha: float
    non_inferior: bool
    inferior: bool


def mcnemar_exact(counts: PairedCounts) -> McNemarTest:
    """Test whether candidate and baseline differ: are the discordant documents a fair coin?

    Without discordant documents the p-value is 1.
    Source: McNemar 1947; the exact form is the two-sided binomial test (scipy `binomtest`).
    """
    discordant = counts.only_candidate + counts.only_baseline
    p_value = float(binomtest(counts.only_candidate, discordant).pvalue) if discordant else 1.0
    return McNemarTest(p_value, discordant)


def tango_interval(counts: PairedCounts, confidence: float = 0.95) -> DifferenceInterval:
    """Two-sided score interval for the paired difference; sound for few or no discordant documents too.

    Raises ValueError when `confidence` is not strictly between 0 and 1.
    Source: Tango 1998, Statistics in Medicine 17:891-908.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"Confidence must lie between 0 and 1, not {confidence}.")
    z = float(norm.isf((1 - confidence) / 2))
    low, high = score_bounds(counts.documents, counts.only_candidate, counts.only_baseline, z)
    return DifferenceInterval(counts.difference, low, high, counts.documents, confidence)


def non_inferiority(counts: PairedCounts, margin: float, alpha: float = 0.05) -> NonInferiority:
    """Decide whether the candidate's accuracy lies less than `margin` below the baseline's, one-sided.

    `margin` is a share of the documents: 0.02 for two points. It must have been chosen before looking.
    Raises ValueError unless 0 < margin < 1 and 0 < alpha < 0.5.
    Source: Tango 1998, the test that belongs to `tango_interval` at confidence 1 - 2 alpha.
    """
    if not 0 < margin < 1 or not 0 < alpha < 0.5:
        raise ValueError(f"Need 0 < margin < 1 and 0 < alpha < 0.5, not margin {margin} and alpha {alpha}.")
    interval = tango_interval(counts, 1 - 2 * alpha)
    p_value = float(norm.sf(score(counts.documents, counts.only_candidate, counts.only_baseline, -margin)))
    return NonInferiority(
        difference=interval.difference,
        low=interval.low,
        high=interval.high,
        margin=margin,
        p_value=p_value,
        alpha=alpha,
        non_inferior=p_value < alpha,
        inferior=interval.high < -margin,
    )


def score(documents: float, only_candidate: float, only_baseline: float, difference: float) -> float:
    """Tango's score statistic when the true difference is supposed to be `difference`, strictly in -1..1.

    The counts need not be whole: clustered pairs are worth fewer documents than there are.
    """
    n, b, c = documents, only_candidate, only_baseline
    # The restricted estimate of the rate "only the baseline is right" solves 2n q^2 + B q + C = 0.
    linear = (2 * n - b + c) * difference - b - c
    constant = -c * difference * (1 - difference)
    q = (sqrt(max(0.0, linear**2 - 8 * n * constant)) - linear) / (4 * n)
    variance = n * (2 * q + difference * (1 - difference))
    distance = b - c - n * difference
    if variance <= 0:  # no discordant documents and no difference supposed
        return 0.0 if distance == 0 else float("inf") if distance > 0 else float("-inf")
    return distance / sqrt(variance)


def score_bounds(documents: float, only_candidate: float, only_baseline: float, z: float) -> tuple[float, float]:
    """The differences at which `score` equals z and -z: the lower and the upper bound, for z > 0."""
    estimate = (only_candidate - only_baseline) / documents

    def bound(end: float, z: float) -> float:
        if estimate == end:
            return end
        inside = end * (1 - 1e-12)
        found = brentq(lambda d: score(documents, only_candidate, only_baseline, d) - z, inside, estimate, xtol=1e-12)
        return float(found)

    return bound(-1.0, z), bound(1.0, -z)
