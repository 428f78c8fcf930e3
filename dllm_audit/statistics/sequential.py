"""Stop an audit as soon as "faster and not worse" is decided, without paying for looking after every pair.

A fixed-sample test may be looked at once. The evidence here may be looked at after every pair, and the audit stopped by it or by
anything else: the chance that it *ever* reaches 1 / alpha while the hypothesis holds is at most alpha (Ville 1939). The
documents must come in random order, one after the other on both sides, the two sides interleaved.

"Faster and not worse" needs two hypotheses refuted, each at level alpha, so that together they err at most alpha too
(intersection-union: Berger 1982, Technometrics 24:295-300):

- *not worse*. The paired difference of a document is -1, 0 or 1. Against "it loses the margin or more" one bets a
  fraction of one's wealth on every pair, at several fractions at once; their mean wealth is the evidence. Its bound is exact for
  any number of pairs (Waudby-Smith and Ramdas 2024, JRSS B 86:1-27, arXiv 2010.09686).
- *faster*. The log of the ratio of means of paired requests, against a normal mixture over positive effects, with the
  variance estimated (asymptotic confidence sequence: Waudby-Smith et al. 2024, Annals of Statistics 52:2613-2640,
  arXiv 2103.06476). Its bound holds for many pairs, so it says nothing before `MINIMUM_PAIRS`.

"Worse" (the loss is more than the margin) and "slower" end an audit too, each at level alpha / 2.

Savings. The plan to compare with is `power.required_documents`: so many pairs decide the margin, one look, one-sided alpha,
for decoders that are truly equal. Where the truth is a loss of three margins, or a gain of three, an audit ends after
about a third, or a tenth, of them. Where the decoders are truly equal it takes about as many as the plan, in the
mean a fifth more: watching is not free there. `python -m tests.benchmarks coverage` prints what it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import exp, isfinite, log
from typing import Any, Literal

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr

from dllm_audit.statistics.paired import DifferenceInterval
from dllm_audit.statistics.power import required_documents

Decision = Literal["faster and not worse", "slower", "worse", "undecided"]

MINIMUM_PAIRS = 20
"""Before so many pairs the variance of the speed is not known well enough to decide by it."""

_BETS = np.geomspace(3, 30, 6)
"""Fractions of the wealth to bet, in margins. The best one is (distance from the boundary) / discordance: 3 margins
suit equal decoders with a third of the documents discordant, 30 a gain of three margins with 13 %."""

_EFFECT = 0.1
"""Scale of the mixture over speed effects, in standard deviations of a pair. A larger one decides large effects sooner,
and trusts the variance of few pairs: at 0.25 skewed times gave up to 9 % false "faster" after 20 pairs, at 0.1 4 %."""

_SMALLEST_DEVIATION = 1e-6
"""Of the log ratio of a pair: no clock tells seconds apart more finely, and equal times must not decide by rounding."""

_FURTHEST = 10**7
"""A decision that takes more pairs than this is none in sight."""

_ASSUMED_DISCORDANCE = 0.1

_ASSUMED_PAIRS = 10
"""Of that discordance, before a projection: one does not project from "never discordant so far"."""

_Claim = Literal["faster", "slower", "not_worse", "worse"]


@dataclass(frozen=True)
class AuditPair:
    """One document on both sides, one right after the other: seconds, right or wrong, and what was made in the time.

    tokens: answered tokens, where speed is tokens per second. Left at 1 on both sides, it is requests per second.
    """

    candidate_seconds: float
    baseline_seconds: float
    candidate_correct: bool
    baseline_correct: bool
    candidate_tokens: float = 1.0
    baseline_tokens: float = 1.0

    def __post_init__(self) -> None:
        seconds, tokens = (self.candidate_seconds, self.baseline_seconds), (self.candidate_tokens, self.baseline_tokens)
        if not all(isfinite(x) and x > 0 for x in seconds) or not all(isfinite(x) and x >= 0 for x in tokens):
            raise ValueError(f"A pair needs seconds above 0 and tokens of 0 or more, all finite: {self}.")


@dataclass(frozen=True)
class SpeedSoFar:
    """Speed of the candidate over that of the baseline, with an interval that holds whenever one stops.

    ratio is None before anything was made; low and high are None before `MINIMUM_PAIRS`.
    """

    ratio: float | None
    low: float | None
    high: float | None
    pairs: int
    confidence: float


@dataclass(frozen=True)
class SequentialAudit:
    """What is known after some pairs. Start with `SequentialAudit(margin)`, go on with `audit = audit.update(pair)`.

    margin: the loss in accuracy that was allowed beforehand, a share (0.02 for two points).
    alpha: the chance of a false "faster and not worse"; a false "slower" or "worse" together have it once more.
    faster_than: the factor that counts as faster (and its reciprocal as slower), 1 or what an A/A control makes up.
    The rest is kept by `update`: counts, sums of (candidate tokens, candidate seconds, baseline tokens, baseline seconds)
    and of their products, and after which pair each hypothesis was refuted.
    Raises ValueError for a margin outside 0..1, an alpha outside 0..0.5, or a `faster_than` below 1.
    """

    margin: float
    alpha: float = 0.05
    faster_than: float = 1.0
    pairs: int = 0
    only_candidate: int = 0
    only_baseline: int = 0
    sums: tuple[float, ...] = (0.0,) * 4
    products: tuple[float, ...] = (0.0,) * 16
    faster_after: int | None = None
    slower_after: int | None = None
    not_worse_after: int | None = None
    worse_after: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.margin < 1 or not 0 < self.alpha < 0.5:
            raise ValueError(
                f"Need 0 < margin < 1 (0.02 for two points) and 0 < alpha < 0.5, not {self.margin} and {self.alpha}."
            )
        if not 1 <= self.faster_than < float("inf"):
            raise ValueError(f"What counts as faster is a factor of 1 or more, not {self.faster_than}.")

    def update(self, pair: AuditPair) -> SequentialAudit:
        """The audit with one pair more. Once decided it stays decided; further pairs only sharpen the estimates."""
        values = np.array([pair.candidate_tokens, pair.candidate_seconds, pair.baseline_tokens, pair.baseline_seconds])
        ours, theirs = bool(pair.candidate_correct), bool(pair.baseline_correct)
        audit = replace(
            self,
            pairs=self.pairs + 1,
            only_candidate=self.only_candidate + (ours and not theirs),
            only_baseline=self.only_baseline + (theirs and not ours),
            sums=tuple((np.array(self.sums) + values).tolist()),
            products=tuple((np.array(self.products) + np.outer(values, values).ravel()).tolist()),
        )
        n = audit.pairs
        return replace(
            audit,
            faster_after=self.faster_after or (n if audit._holds("faster", n) else None),
            slower_after=self.slower_after or (n if audit._holds("slower", n) else None),
            not_worse_after=self.not_worse_after or (n if audit._holds("not_worse", n) else None),
            worse_after=self.worse_after or (n if audit._holds("worse", n) else None),
        )

    def update_all(self, pairs: Iterable[AuditPair]) -> SequentialAudit:
        """The audit after all of `pairs`, in their order."""
        audit = self
        for pair in pairs:
            audit = audit.update(pair)
        return audit

    @property
    def decision(self) -> Decision:
        """What was decided first."""
        return self._first[0]

    @property
    def decided_after(self) -> int | None:
        """After how many pairs it was decided; None while it is not."""
        return self._first[1]

    @property
    def quality(self) -> DifferenceInterval:
        """Accuracy of the candidate minus the baseline's, with an interval that holds whenever one stops.

        At confidence 1 - 2 alpha, so that its lower end is the one that "not worse" rests on.
        Raises ValueError before the first pair.
        """
        if not self.pairs:
            raise ValueError("There is no pair yet.")
        n, b, c = self.pairs, self.only_candidate, self.only_baseline
        low = _smallest(lambda m: float(difference_evidence(n, b, c, m, self.margin)), self.alpha)
        high = -_smallest(lambda m: float(difference_evidence(n, c, b, m, self.margin)), self.alpha)
        return DifferenceInterval((b - c) / n, low, high, n, 1 - 2 * self.alpha)

    @property
    def speed(self) -> SpeedSoFar:
        """The ratio of speeds with its interval, at confidence 1 - 2 alpha."""
        found = self._log_ratio
        if found is None:
            return SpeedSoFar(None, None, None, self.pairs, 1 - 2 * self.alpha)
        value, deviation = found
        if self.pairs < MINIMUM_PAIRS:
            return SpeedSoFar(exp(value), None, None, self.pairs, 1 - 2 * self.alpha)
        deviation = max(deviation, _SMALLEST_DEVIATION)
        wide = brentq(lambda x: float(speed_evidence(self.pairs, x, deviation)) + log(self.alpha), 0, 10 * deviation)
        return SpeedSoFar(exp(value), exp(value - wide), exp(value + wide), self.pairs, 1 - 2 * self.alpha)

    def more_pairs(self) -> int | None:
        """How many more pairs a decision is projected to take if the rest is like what was seen; 0 once decided.

        None where no decision is in sight: before `MINIMUM_PAIRS`, or where the estimates lie at a boundary.
        """
        if self.decision != "undecided":
            return 0
        if self.pairs < MINIMUM_PAIRS:
            return None
        faster = 0 if self.faster_after else self._wait("faster")
        not_worse = 0 if self.not_worse_after else self._wait("not_worse")
        both = None if faster is None or not_worse is None else max(faster, not_worse)
        waits = (both, self._wait("slower"), self._wait("worse"))
        return min((wait for wait in waits if wait is not None), default=None)

    def fixed_plan(self, power: float = 0.8) -> int:
        """Pairs that a plan of one look takes for the same margin and alpha, for decoders that are equal.

        It needs a discordance: that of the pairs seen, or 10 % with fewer than five discordant ones.
        """
        discordant = self.only_candidate + self.only_baseline
        discordance = discordant / self.pairs if discordant >= 5 else _ASSUMED_DISCORDANCE
        return required_documents(self.margin, discordance, self.alpha, power).documents

    def saved_requests(self, power: float = 0.8) -> int:
        """Requests that `fixed_plan` would have taken beyond those of the decision, two a pair.

        Negative where watching took longer.
        """
        return 2 * (self.fixed_plan(power) - (self.decided_after or self.pairs))

    @property
    def _first(self) -> tuple[Decision, int | None]:
        reached: list[tuple[int, Decision]] = []
        if self.worse_after is not None:
            reached.append((self.worse_after, "worse"))
        if self.slower_after is not None:
            reached.append((self.slower_after, "slower"))
        if self.faster_after is not None and self.not_worse_after is not None:
            reached.append((max(self.faster_after, self.not_worse_after), "faster and not worse"))
        if not reached:
            return "undecided", None
        after, decision = min(reached, key=lambda entry: entry[0])  # of two at once, the one listed first
        return decision, after

    @property
    def _log_ratio(self) -> tuple[float, float] | None:
        """(log of the speed ratio, standard deviation of it for one pair); None before both sides made anything."""
        if not self.sums[0] or not self.sums[2]:
            return None
        value, deviation = log_speed_ratio(self.pairs, np.array(self.sums), np.array(self.products).reshape(4, 4))
        return float(value), float(deviation)

    def _holds(self, claim: _Claim, pairs: int) -> bool:
        """Whether a claim is established after `pairs`, where those beyond the ones seen are like them."""
        if claim in ("not_worse", "worse"):
            more = (pairs - self.pairs) / (self.pairs + _ASSUMED_PAIRS)
            assumed = _ASSUMED_PAIRS * _ASSUMED_DISCORDANCE / 2
            b, c = (seen + more * (seen + assumed) for seen in (self.only_candidate, self.only_baseline))
            if claim == "not_worse":
                return float(not_worse_evidence(pairs, b, c, self.margin)) >= -log(self.alpha)
            return float(worse_evidence(pairs, b, c, self.margin)) >= -log(self.alpha / 2)
        found = self._log_ratio
        if found is None or pairs < MINIMUM_PAIRS:
            return False
        value, deviation = found
        if claim == "faster":
            return float(speed_evidence(pairs, value - log(self.faster_than), deviation)) >= -log(self.alpha)
        return float(speed_evidence(pairs, -value - log(self.faster_than), deviation)) >= -log(self.alpha / 2)

    def _wait(self, claim: _Claim) -> int | None:
        """More pairs until a claim is established; None where that is not in sight."""
        low, high = 0, 1
        while not self._holds(claim, self.pairs + high):
            low, high = high, 2 * high
            if high > _FURTHEST:
                return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._holds(claim, self.pairs + middle) else (middle, high)
        return high


@dataclass(frozen=True)
class ProjectedPairs:
    """What audits of decoders that truly differ by `difference` in accuracy take, as far as quality decides it.

    pairs: half of them take fewer. decided_within: the share that `available` pairs decide; speed takes `MINIMUM_PAIRS` at least.
    """

    difference: float
    pairs: int
    available: int
    decided_within: float


def projected_pairs(
    margin: float,
    available: int,
    difference: float = 0.0,
    discordance: float = _ASSUMED_DISCORDANCE,
    alpha: float = 0.05,
    audits: int = 500,
    seed: int = 0,
) -> ProjectedPairs:
    """Simulate `audits` audits of right-or-wrong answers, and say how many pairs they take.

    discordance: of the documents, raised to the size of the difference where that is larger.
    """
    planned = required_documents(margin, discordance, alpha).documents
    looks = np.unique(np.geomspace(1, 20 * planned, 400).astype(int))
    share = max(discordance, abs(difference))
    odds = [(share + difference) / 2, (share - difference) / 2, 1 - share]
    new = np.random.default_rng(seed).multinomial(np.diff(looks, prepend=0), odds, (audits, len(looks)))
    better, worse = (np.cumsum(new[..., n], axis=1) for n in (0, 1))
    decided = not_worse_evidence(looks, better, worse, margin) >= -log(alpha)
    decided |= worse_evidence(looks, better, worse, margin) >= -log(alpha / 2)
    stops = np.where(decided.any(axis=1), looks[decided.argmax(axis=1)], looks[-1])
    return ProjectedPairs(difference, int(np.median(stops)), available, float((stops <= available).mean()))


def not_worse_evidence(pairs: Any, only_candidate: Any, only_baseline: Any, margin: float) -> Any:
    """Log of the evidence that the candidate loses less than `margin`; counts are numbers or arrays of them.

    While it loses the margin or more, the chance that this ever reaches log(1 / alpha) is at most alpha.
    """
    return difference_evidence(pairs, only_candidate, only_baseline, -margin, margin)


def worse_evidence(pairs: Any, only_candidate: Any, only_baseline: Any, margin: float) -> Any:
    """Log of the evidence that the candidate loses more than `margin`; the mirror image of `not_worse_evidence`."""
    return difference_evidence(pairs, only_baseline, only_candidate, margin, margin)


def difference_evidence(pairs: Any, better: Any, worse: Any, boundary: float, scale: float) -> Any:
    """Log of the evidence that the mean of `better` x 1, `worse` x -1 and the rest 0 lies above `boundary`.

    The mean wealth of gamblers who each stake a fixed fraction on every pair: wealth x (1 + fraction x (value - boundary)).
    scale: the distance from the boundary that matters, which sets the fractions.
    Source: arXiv 2010.09686, section 4, with a mixture over fixed fractions, so that only the counts matter.
    """
    # A fraction below 1 / (1 + boundary) cannot be ruined by a single -1.
    fractions = np.minimum(_BETS * scale, 0.95 / (1 + boundary) if boundary > -1 else np.inf)
    better, worse = np.asarray(better, dtype=float), np.asarray(worse, dtype=float)
    equal = np.asarray(pairs, dtype=float) - better - worse
    wealth = [
        better * np.log1p(f * (1 - boundary)) + equal * np.log1p(-f * boundary) + worse * np.log1p(-f * (1 + boundary))
        for f in fractions
    ]
    return np.logaddexp.reduce(wealth, axis=0) - log(len(fractions))


def log_speed_ratio(pairs: Any, sums: np.ndarray, products: np.ndarray) -> tuple[Any, Any]:
    """(log of candidate speed over baseline speed, its standard deviation for one pair); for arrays of audits too.

    sums: [..., 4] of candidate tokens and seconds, baseline tokens and seconds. products: [..., 4, 4], sums of the
    products of each two. The deviation is that of the linear part (delta method); it is 0 for a single pair.
    """
    logs = np.log(sums)
    value = logs[..., 0] - logs[..., 1] - logs[..., 2] + logs[..., 3]
    gradient = np.array([1.0, -1.0, -1.0, 1.0]) / sums
    squares = np.einsum("...i,...ij,...j->...", gradient, products, gradient)
    n = np.asarray(pairs, dtype=float)
    return value, n * np.sqrt(np.maximum(squares, 0.0) / np.maximum(n - 1, 1))


def speed_evidence(pairs: Any, log_ratio: Any, deviation: Any) -> Any:
    """Log of the evidence that a log speed ratio estimated as `log_ratio` is above 0; numbers or arrays.

    A half-normal mixture over positive effects of the likelihood ratio of a Brownian motion, at the standardised sum.
    Source: Robbins 1970, Annals of Mathematical Statistics 41:1397-1409; with an estimated variance as in
    arXiv 2103.06476, where its closed bound log(1 + sqrt(n r^2 + 1) / (2 alpha)) is a little wider.
    """
    n = np.asarray(pairs, dtype=float)
    score = n * np.asarray(log_ratio) / np.maximum(deviation, _SMALLEST_DEVIATION)
    spread = n * _EFFECT**2 + 1
    reached = _EFFECT * score / np.sqrt(spread)
    return log(2) - np.log(spread) / 2 + reached**2 / 2 + log_ndtr(reached)


def _smallest(evidence: Callable[[float], float], alpha: float) -> float:
    """The smallest mean that the evidence leaves possible, in -1..1."""
    threshold = -log(alpha)
    if evidence(-1.0) < threshold:
        return -1.0
    return float(brentq(lambda m: evidence(m) - threshold, -1.0, 1.0 - 1e-9, xtol=1e-9))
