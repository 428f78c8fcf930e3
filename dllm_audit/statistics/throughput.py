"""Ratios of sums over clusters: tokens per second of one side, the speed-up of two, and contrasts of more.

A throughput is a sum of tokens over a sum of seconds, never a mean of ratios. Requests that share forwards
are not independent, and neither are batches of one repeat, because clocks drift between repeats. The data are
nested (a repeat has batches, a batch has requests), and what is drawn at random says what an interval holds for:

- `repeat`: whole repeats. It holds for another repeat of the same documents. Drawing again inside a drawn repeat
  would count the variation inside it twice (Davison and Hinkley 1997, section 3.8).
- `batch`: batches inside their repeat, the repeats kept. It says nothing of how runs differ.
- `crossed`: repeats, and separately batches at the same place of every repeat, for repeats that decode the same documents.
  It holds for another repeat of other documents; the two variances add up (two-way clustering: Cameron, Gelbach
  and Miller 2011, Journal of Business and Economic Statistics 29:238-249).
- `nested`: repeats, in each of them batches, in each of those the requests that stand alone (Saravanan et al. 2020,
  arXiv 2007.07797). It is wider than `repeat`, by up to a factor of 1.4, where repeats have documents of their own, and
  `repeat` is right there; where they have the same documents it is too narrow, and `crossed` is right.

With few clusters a percentile interval is too narrow: over five repeats one of 95 % covered 92 % in
simulation even with its tails widened. So the interval is the estimate plus and minus Student's t times the
bootstrap standard error, enlarged by sqrt(n / (n - 1)) because n drawn clusters vary less than n new ones do
(Hesterberg 2015, The American Statistician 69:371-386). With fewer than `MINIMUM_CLUSTERS` it is unknown.
`python -m tests.benchmarks coverage` prints how often each of them covers the truth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, isclose, sqrt
from typing import Any, Literal

import numpy as np
from scipy.stats import t

Level = Literal["repeat", "batch", "crossed", "nested"]

MINIMUM_CLUSTERS = 5
"""Three or four clusters give 10 or 35 different resamples: too few to say how much clusters vary."""


@dataclass(frozen=True)
class Batch:
    """Requests that shared forwards: their tokens and seconds, added up. One request may be a batch.

    requests: where they did not share forwards, each of them with its own tokens and seconds, which add up to those
    of the batch; empty otherwise. Only `nested` looks at them.
    """

    tokens: float
    seconds: float
    requests: tuple[Batch, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        if not (0 <= self.tokens < float("inf") and 0 < self.seconds < float("inf")):
            raise ValueError(f"A batch needs tokens >= 0 and seconds > 0, both finite: {self}.")
        for name in ("tokens", "seconds") if self.requests else ():
            parts, whole = sum(getattr(request, name) for request in self.requests), getattr(self, name)
            if not isclose(parts, whole, rel_tol=1e-6):
                raise ValueError(f"The {name} of a batch ({whole:g}) are those of its requests together ({parts:g}).")


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
    """Tokens per second over all batches, with a bootstrap interval over what `level` names.

    Raises ValueError when a repeat has no batch.
    """
    number, reason = _clusters([repeats], level)
    tokens, seconds = _sums(repeats)
    ratio = tokens / seconds
    if reason:
        return RatioInterval(ratio, None, None, level, number, confidence, reason)
    sources = _sources([repeats], level, draws, generator)
    half = _half_width([source.of(_ratio(source.drawn[0])) for source in sources], confidence)
    return RatioInterval(ratio, max(0.0, ratio - half), ratio + half, level, number, confidence)


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
    return contrast_intervals(
        [candidate, baseline], [(1, -1)], level=level, confidence=confidence, draws=draws, generator=generator
    )[0]


def contrast_intervals(
    sides: Sequence[Sequence[Repeat]],
    contrasts: Sequence[Sequence[float]],
    *,
    level: Level = "repeat",
    confidence: float = 0.95,
    draws: int = 4000,
    generator: np.random.Generator,
) -> tuple[RatioInterval, ...]:
    """exp(sum of weight x log throughput) for each contrast, a weight a side; (1, -1) is the speed-up of two sides.

    The i-th clusters of all sides are drawn together. Each interval is symmetric in the logarithm.
    Raises ValueError when the sides have different numbers of clusters, or a cluster produced no tokens.
    """
    number, reason = _clusters(sides, level)
    for repeats in sides:
        units = [sum(b.tokens for b in repeat) for repeat in repeats]
        if level != "repeat":
            units = [batch.tokens for repeat in repeats for batch in repeat]
        if not all(units):
            what = "repeat" if level == "repeat" else "batch"
            raise ValueError(f"A {what} produced no tokens, so its speed-up is undefined.")
    logs = np.log([tokens / seconds for tokens, seconds in map(_sums, sides)])
    weights = np.asarray(contrasts, dtype=float)
    ratios = [float(value) for value in np.exp(weights @ logs)]
    if reason:
        return tuple(RatioInterval(ratio, None, None, level, number, confidence, reason) for ratio in ratios)
    sources = _sources(sides, level, draws, generator)
    drawn = [weights @ np.log([_ratio(sums) for sums in source.drawn]) for source in sources]
    intervals = []
    for n, ratio in enumerate(ratios):
        parts = [source.of(values[n]) for source, values in zip(sources, drawn, strict=True)]
        factor = exp(_half_width(parts, confidence))
        intervals.append(RatioInterval(ratio, ratio / factor, ratio * factor, level, number, confidence))
    return tuple(intervals)


def draw_counts(generator: np.random.Generator, clusters: int, draws: int) -> np.ndarray:
    """[draws, clusters]: how often each cluster was drawn, when `clusters` of them are drawn with replacement."""
    drawn = generator.integers(clusters, size=(draws, clusters))
    offsets = clusters * np.arange(draws)[:, None]
    return np.bincount((drawn + offsets).ravel(), minlength=draws * clusters).reshape(draws, clusters)


def _clusters(sides: Sequence[Sequence[Repeat]], level: Level) -> tuple[int, str]:
    """How many clusters are drawn, and why their variation is unknown; empty where it is known."""
    for repeats in sides:
        if not repeats or not all(repeats):
            raise ValueError("Need at least one repeat, and at least one batch in each.")
    layouts = [[len(repeat) for repeat in repeats] for repeats in sides]
    numbers = [sum(layout) if level == "batch" else len(layout) for layout in layouts]
    for number in numbers[1:]:
        if number != numbers[0]:
            raise ValueError(
                f"A paired speed-up needs as many {'batch' if level == 'batch' else 'repeat'} clusters of the "
                f"candidate ({numbers[0]}) as of the baseline ({number})."
            )
    if level != "repeat" and any(layout != layouts[0] for layout in layouts):
        raise ValueError(f"Batches are paired only where every repeat has as many on all sides, not {layouts}.")
    layout, number = layouts[0], numbers[0]
    if level == "crossed" and len(set(layout)) > 1:
        raise ValueError(f"Repeats are crossed only where each has the same batches, not {layout} of them.")
    free = {"batches": number - len(layout) + 1} if level == "batch" else {"repeats": number}
    if level == "crossed":
        free["batches"] = layout[0]
    scarce = min(free, key=lambda what: free[what])
    if free[scarce] >= MINIMUM_CLUSTERS:
        return number, ""
    return number, f"unknown: {free[scarce]} of at least {MINIMUM_CLUSTERS} {scarce}"


def _sums(repeats: Sequence[Repeat]) -> tuple[float, float]:
    tokens, seconds = np.sum([[b.tokens, b.seconds] for repeat in repeats for b in repeat], axis=0)
    return float(tokens), float(seconds)


@dataclass(frozen=True)
class _Source:
    """What one kind of drawing gives: [draws, 2] tokens and seconds for each side.

    degrees: of freedom of the clusters drawn. shrinkage: variance of drawn clusters over that of new ones, (n - 1) / n.
    """

    drawn: list[np.ndarray]
    degrees: int
    shrinkage: float

    def of(self, values: np.ndarray) -> tuple[float, int]:
        """(variance of an estimate that the draws give as `values`, its degrees of freedom)."""
        return float(np.var(values)) / self.shrinkage, self.degrees


def _sources(
    sides: Sequence[Sequence[Repeat]], level: Level, draws: int, generator: np.random.Generator
) -> list[_Source]:
    """The draws that `level` asks for; the same clusters are drawn of every side."""
    batches = [[np.array([[b.tokens, b.seconds] for b in repeat]) for repeat in repeats] for repeats in sides]
    layout = [len(repeat) for repeat in batches[0]]
    r, total = len(layout), sum(layout)
    if level == "batch":
        inside = [draw_counts(generator, number, draws) for number in layout]
        drawn = [np.sum([n @ x for n, x in zip(inside, side, strict=True)], axis=0) for side in batches]
        return [_Source(drawn, total - r, (total - r) / total)]
    taken = draw_counts(generator, r, draws)
    if level == "nested":
        return [_Source(_nested(sides, taken, generator), r - 1, (r - 1) / r)]
    whole = [taken @ np.stack([repeat.sum(axis=0) for repeat in side]) for side in batches]
    found = [_Source(whole, r - 1, (r - 1) / r)]
    if level == "crossed":
        places = draw_counts(generator, layout[0], draws)
        across = [places @ np.sum(side, axis=0) for side in batches]
        found.append(_Source(across, layout[0] - 1, (layout[0] - 1) / layout[0]))
    return found


def _nested(
    sides: Sequence[Sequence[Repeat]], repeats_taken: np.ndarray, generator: np.random.Generator
) -> list[np.ndarray]:
    """[draws, 2] for each side, batches and requests drawn inside the repeats that were taken so often."""
    totals = [np.zeros((len(repeats_taken), 2)) for _ in sides]
    for r, repeats in enumerate(zip(*sides, strict=True)):
        number = len(repeats[0])
        # Drawing n items k times over is one multinomial draw of k x n: each copy of a repeat gets its own batches.
        taken = generator.multinomial(repeats_taken[:, r] * number, np.full(number, 1 / number))
        for total, repeat in zip(totals, repeats, strict=True):
            total += taken @ np.array([[batch.tokens, batch.seconds] for batch in repeat])
        for b in range(number):
            units = [np.array([[q.tokens, q.seconds] for q in repeat[b].requests]) for repeat in repeats]
            size = len(units[0])
            if size > 1 and all(len(unit) == size for unit in units):
                spread = generator.multinomial(taken[:, b] * size, np.full(size, 1 / size)) - taken[:, b : b + 1]
                for total, unit in zip(totals, units, strict=True):
                    total += spread @ unit
    return totals


def _ratio(sums: np.ndarray) -> Any:
    """Tokens over seconds: a number for one pair of sums, an array for many."""
    return sums[..., 0] / sums[..., 1]


def _half_width(parts: Sequence[tuple[float, int]], confidence: float) -> float:
    """Student's t times the standard error, from (variance, degrees of freedom) of independent sources.

    Several sources share the degrees of freedom of Satterthwaite 1946, Biometrics Bulletin 2:110-114.
    """
    variance = sum(part for part, _ in parts)
    if not variance:
        return 0.0
    degrees = variance**2 / sum(part**2 / free for part, free in parts)
    return sqrt(variance) * float(t.isf((1 - confidence) / 2, degrees))
