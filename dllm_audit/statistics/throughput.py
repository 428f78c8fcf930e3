"""Ratios of sums over clusters: tokens per second of one side, the speed-up of two, and contrasts of more.

A throughput is a sum of tokens over a sum of seconds, never a mean of ratios. Requests that share forwards
are not independent, and neither are batches of one repeat, because clocks drift between repeats. The data are
nested (a repeat has batches, a batch has requests), and what is drawn at random says what an interval holds for:

- `repeat`: whole repeats. It holds for another repeat of the same documents. Drawing again inside a drawn repeat
  would count the variation inside it twice (Davison and Hinkley 1997, section 3.8).
- `batch`: batches inside their repeat, the repeats kept. It says nothing of how runs differ.
- `crossed`: repeats, and batches at the same place of every repeat, for repeats that decode the same documents. It holds
  for another repeat of other documents (the pigeonhole bootstrap: Owen 2007, Annals of Applied Statistics 1:386-411).
- `nested`: repeats, in each of them batches, in each of those the requests that stand alone (Saravanan et al. 2020,
  arXiv 2007.07797). It is wider than `repeat`, by up to a factor of 1.4: for repeats with documents of their own
  `repeat` is right, for repeats of the same documents `crossed` is.

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

_PLURAL = {"repeat": "repeats", "batch": "batches", "crossed": "repeats", "nested": "repeats"}


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
    clusters = _clusters([repeats], level)
    tokens, seconds = _sums(repeats)
    ratio = tokens / seconds
    if clusters.reason:
        return RatioInterval(ratio, None, None, level, clusters.number, confidence, clusters.reason)
    (drawn,) = _drawn([repeats], level, draws, generator)
    half = _half_width(_ratio(drawn), clusters, confidence)
    return RatioInterval(ratio, max(0.0, ratio - half), ratio + half, level, clusters.number, confidence)


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
    clusters = _clusters(sides, level)
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
    if clusters.reason:
        return tuple(
            RatioInterval(ratio, None, None, level, clusters.number, confidence, clusters.reason) for ratio in ratios
        )
    drawn = weights @ np.log([_ratio(sums) for sums in _drawn(sides, level, draws, generator)])
    factors = [exp(_half_width(values, clusters, confidence)) for values in drawn]
    return tuple(
        RatioInterval(ratio, ratio / factor, ratio * factor, level, clusters.number, confidence)
        for ratio, factor in zip(ratios, factors, strict=True)
    )


def draw_counts(generator: np.random.Generator, clusters: int, draws: int) -> np.ndarray:
    """[draws, clusters]: how often each cluster was drawn, when `clusters` of them are drawn with replacement."""
    drawn = generator.integers(clusters, size=(draws, clusters))
    offsets = clusters * np.arange(draws)[:, None]
    return np.bincount((drawn + offsets).ravel(), minlength=draws * clusters).reshape(draws, clusters)


@dataclass(frozen=True)
class _Clusters:
    """How many clusters are drawn, the degrees of freedom of their variation, and why that is unknown.

    shrinkage: the variance of drawn clusters over that of new ones, (n - 1) / n.
    """

    number: int
    degrees: int
    shrinkage: float
    reason: str


def _clusters(sides: Sequence[Sequence[Repeat]], level: Level) -> _Clusters:
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
    degrees = number - len(layout) if level == "batch" else number - 1
    scarce, what = degrees + 1, _PLURAL[level]
    if level == "crossed" and layout[0] < number:
        degrees, scarce, what = layout[0] - 1, layout[0], "batches"
    reason = f"unknown: {scarce} of at least {MINIMUM_CLUSTERS} {what}" if scarce < MINIMUM_CLUSTERS else ""
    return _Clusters(number, degrees, degrees / (sum(layout) if level == "batch" else degrees + 1), reason)


def _sums(repeats: Sequence[Repeat]) -> tuple[float, float]:
    tokens, seconds = np.sum([[b.tokens, b.seconds] for repeat in repeats for b in repeat], axis=0)
    return float(tokens), float(seconds)


def _drawn(
    sides: Sequence[Sequence[Repeat]], level: Level, draws: int, generator: np.random.Generator
) -> list[np.ndarray]:
    """[draws, 2] for each side: tokens and seconds of every draw; the same clusters are drawn of every side."""
    batches = [[np.array([[b.tokens, b.seconds] for b in repeat]) for repeat in repeats] for repeats in sides]
    layout = [len(repeat) for repeat in batches[0]]
    if level == "batch":
        inside = [draw_counts(generator, number, draws) for number in layout]
        return [np.sum([n @ x for n, x in zip(inside, side, strict=True)], axis=0) for side in batches]
    drawn = draw_counts(generator, len(layout), draws)
    if level == "repeat":
        return [drawn @ np.stack([repeat.sum(axis=0) for repeat in side]) for side in batches]
    if level == "crossed":
        places = draw_counts(generator, layout[0], draws)
        return [
            np.stack([((drawn @ np.stack(side)[:, :, k]) * places).sum(axis=1) for k in (0, 1)], axis=1)
            for side in batches
        ]
    totals = [np.zeros((draws, 2)) for _ in sides]
    for r, number in enumerate(layout):
        # Drawing n items k times over is one multinomial draw of k x n: each copy of a repeat gets its own batches.
        taken = generator.multinomial(drawn[:, r] * number, np.full(number, 1 / number))
        for b in range(number):
            units = [_units(repeat_of_side[r][b]) for repeat_of_side in sides]
            counts = taken[:, b : b + 1]
            if len(units[0]) > 1 and all(len(unit) == len(units[0]) for unit in units):
                size = len(units[0])
                counts = generator.multinomial(taken[:, b] * size, np.full(size, 1 / size))
            else:
                units = [unit.sum(axis=0, keepdims=True) for unit in units]
            for total, unit in zip(totals, units, strict=True):
                total += counts @ unit
    return totals


def _units(batch: Batch) -> np.ndarray:
    """[requests, 2]: tokens and seconds of the requests that stand alone, or of the batch as a whole."""
    return np.array([[r.tokens, r.seconds] for r in batch.requests or (batch,)])


def _ratio(sums: np.ndarray) -> Any:
    """Tokens over seconds: a number for one pair of sums, an array for many."""
    return sums[..., 0] / sums[..., 1]


def _half_width(drawn: np.ndarray, clusters: _Clusters, confidence: float) -> float:
    standard_error = float(np.std(drawn)) / sqrt(clusters.shrinkage)
    return standard_error * float(t.isf((1 - confidence) / 2, clusters.degrees))
