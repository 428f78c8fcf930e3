"""At which concurrency does the baseline overtake, if at all, as far as a sweep shows.

Speed ratios are measured at a few concurrencies; between two of them their logarithm is taken to be straight against
the logarithm of the concurrency. The interval holds every concurrency at which "equally fast" cannot be
excluded (Fieller's way of inverting a test: Fieller 1954, JRSS B 16:175-185). So it covers as well with five repeats as with many,
and a sweep in which nobody overtakes has an honest answer too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log, sqrt
from typing import Literal

import numpy as np
from scipy.stats import t

from dllm_audit.statistics.throughput import MINIMUM_CLUSTERS, Repeat, draw_counts

CrossoverVerdict = Literal["overtakes", "none", "behind", "unclear"]


@dataclass(frozen=True)
class Crossover:
    """Where the baseline overtakes the candidate.

    verdict: "overtakes" at `concurrency`; "none" up to the largest measured one; "behind": the candidate is the
    slower one at the smallest already, and never faster; "unclear": the two change places more than once, and
    `concurrency` is where the candidate loses its lead first (None where it never has it from the start on).
    low, high: every concurrency outside of them is decided, one way or the other; some between them may be too. `low` is
    None where the interval reaches the smallest measured one, `high` where it reaches the largest, and both are None also
    where everything measured is decided, or where the interval is unknown; `reason` says which.
    ratios: speed of the candidate over that of the baseline at each measured concurrency.
    """

    verdict: CrossoverVerdict
    concurrency: float | None
    low: float | None
    high: float | None
    measured: tuple[int, ...]
    ratios: tuple[float, ...]
    repeats: int
    confidence: float
    reason: str

    @property
    def sentence(self) -> str:
        """The result in words, its interval included."""
        first, last = self.measured[0], self.measured[-1]
        said = {
            "overtakes": f"The baseline overtakes at {self.concurrency or 0:.3g} in flight",
            "none": f"None up to {last}: the candidate is faster at every measured concurrency",
            "behind": f"The baseline is faster from {first} in flight on",
            "unclear": f"Unclear: the two change places more than once between {first} and {last} in flight",
        }[self.verdict]
        if self.reason:
            return f"{said} ({self.reason})."
        low = f"{first} or fewer" if self.low is None else f"{self.low:.3g}"
        high = f"{last} or more" if self.high is None else f"{self.high:.3g}"
        return f"{said} (undecided from {low} to {high})."


def crossover_concurrency(
    concurrencies: Sequence[int],
    candidate: Sequence[Sequence[Repeat]],
    baseline: Sequence[Sequence[Repeat]],
    *,
    confidence: float = 0.95,
    draws: int = 4000,
    generator: np.random.Generator,
) -> Crossover:
    """Where the baseline overtakes in a sweep: candidate[i] and baseline[i] are the repeats at concurrencies[i].

    The i-th repeats of all concurrencies and both sides are drawn together, so a sweep should be interleaved
    repeat by repeat. With fewer than five repeats the interval is unknown.
    Raises ValueError unless two or more concurrencies rise from 1, each with equally many repeats on both sides.
    """
    levels = tuple(concurrencies)
    if len(levels) < 2 or levels[0] < 1 or any(b <= a for a, b in pairwise(levels)):
        raise ValueError(f"A sweep needs two or more rising concurrencies from 1 on, not {list(levels)}.")
    sides = (candidate, baseline)
    if any(len(side) != len(levels) for side in sides):
        raise ValueError(f"A sweep over {len(levels)} concurrencies has as many entries on both sides.")
    repeats = len(candidate[0])
    if not repeats or any(len(runs) != repeats for side in sides for runs in side):
        raise ValueError("Every concurrency of a sweep needs equally many repeats, at least one, on both sides.")
    sums = np.array([[[_total(repeat) for repeat in runs] for runs in side] for side in sides])
    if not sums[..., 0].all():
        raise ValueError("A repeat produced no tokens, so no speed can be compared.")
    values = _log_ratios(sums.sum(axis=2))
    verdict, place = _crossing(values)
    where = None if place is None else _between(levels, values, place)
    low = high = None
    reason = f"interval unknown: {repeats} of at least {MINIMUM_CLUSTERS} repeats"
    if repeats >= MINIMUM_CLUSTERS:
        counts = draw_counts(generator, repeats, draws)
        drawn = _log_ratios(np.einsum("dr,sjrk->sjdk", counts, sums))
        covariance = np.cov(drawn, bias=True) * repeats / (repeats - 1)
        limit = float(t.isf((1 - confidence) / 2, repeats - 1))
        low, high, reason = _undecided(levels, values, covariance, limit, where)
    return Crossover(verdict, where, low, high, levels, tuple(map(float, np.exp(values))), repeats, confidence, reason)


def _total(repeat: Repeat) -> tuple[float, float]:
    if not repeat:
        raise ValueError("Every repeat of a sweep needs at least one batch.")
    return sum(batch.tokens for batch in repeat), sum(batch.seconds for batch in repeat)


def _log_ratios(sums: np.ndarray) -> np.ndarray:
    """Log of candidate over baseline from [side, ..., (tokens, seconds)]."""
    logs = np.log(sums[..., 0] / sums[..., 1])
    found: np.ndarray = logs[0] - logs[1]
    return found


def _crossing(values: np.ndarray) -> tuple[CrossoverVerdict, int | None]:
    """The verdict, and after which measured concurrency the candidate first loses its lead."""
    ahead = values > 0
    changes = np.flatnonzero(ahead[1:] != ahead[:-1])
    if not len(changes):
        return ("none" if ahead[0] else "behind"), None
    first = int(changes[0]) if ahead[0] else None
    return ("overtakes" if ahead[0] and len(changes) == 1 else "unclear"), first


def _between(levels: Sequence[int], values: np.ndarray, place: int) -> float:
    """The concurrency after levels[place] at which the straight line meets zero."""
    return _at(levels, place, float(values[place] / (values[place] - values[place + 1])))


def _at(levels: Sequence[int], place: int, share: float) -> float:
    start, end = log(levels[place]), log(levels[place + 1])
    return exp(start + share * (end - start))


def _undecided(
    levels: Sequence[int], values: np.ndarray, covariance: np.ndarray, limit: float, where: float | None
) -> tuple[float | None, float | None, str]:
    """The smallest and the largest concurrency at which no side is faster beyond `limit` standard errors.

    On a segment the squared log ratio minus limit^2 x its variance is a parabola in the share of the way: "undecided"
    is where that is not positive.
    """
    found = [] if where is None else [where]  # without any variance the parabola only touches zero there
    for j in range(len(levels) - 1):
        a, b = values[j], values[j + 1]
        va, vb, vab = covariance[j, j], covariance[j + 1, j + 1], covariance[j, j + 1]
        square = limit**2
        quadratic = (b - a) ** 2 - square * (va + vb - 2 * vab)
        linear = 2 * a * (b - a) - 2 * square * (vab - va)
        constant = a**2 - square * va
        ends = [share for share in (0.0, 1.0) if (quadratic * share + linear) * share + constant <= 0]
        found += [_at(levels, j, share) for share in (*ends, *_roots(quadratic, linear, constant))]
    if not found:
        return None, None, "decided at every measured concurrency"
    tolerance = 1e-9
    low = None if min(found) <= levels[0] * (1 + tolerance) else min(found)
    high = None if max(found) >= levels[-1] * (1 - tolerance) else max(found)
    return low, high, ""


def _roots(quadratic: float, linear: float, constant: float) -> list[float]:
    """Roots in 0..1."""
    if abs(quadratic) < 1e-15:
        shares = [-constant / linear] if linear else []
    else:
        inside = linear**2 - 4 * quadratic * constant
        shares = [(-linear + sign * sqrt(inside)) / (2 * quadratic) for sign in (-1, 1)] if inside >= 0 else []
    return [share for share in shares if 0 <= share <= 1]
