"""Requests per second that somebody could use: answered within a latency bound, or answered correctly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dllm_audit.statistics.proportions import wilson_interval
from dllm_audit.statistics.throughput import Batch, RatioInterval, throughput_interval


@dataclass(frozen=True)
class ServedRequest:
    """One request: seconds from hand-over to the answer, or to the failure, and what became of it.

    correct: None where nobody judged it.
    """

    seconds: float
    answered: bool = True
    correct: bool | None = None

    def __post_init__(self) -> None:
        if not 0 < self.seconds < float("inf"):
            raise ValueError(f"A request takes a finite time above 0, not {self.seconds} seconds.")


@dataclass(frozen=True)
class ServedRun:
    """The requests of one run and its makespan: seconds from the first hand-over to the last answer."""

    requests: tuple[ServedRequest, ...]
    makespan_seconds: float

    def __post_init__(self) -> None:
        if not self.requests or not 0 < self.makespan_seconds < float("inf"):
            raise ValueError(f"A run has at least one request and a makespan above 0, not {self.makespan_seconds}.")


@dataclass(frozen=True)
class Goodput:
    """Requests answered within `bound_seconds`: their share of all requests (0..1), and how many a second.

    A request that failed counts as not answered in time, whenever it failed.
    """

    bound_seconds: float
    within: int
    requests: int
    share: RatioInterval
    per_second: RatioInterval


def goodput(
    runs: Sequence[ServedRun],
    bound_seconds: float,
    *,
    level: Literal["repeat", "batch"],
    confidence: float = 0.95,
    draws: int = 4000,
    generator: np.random.Generator,
) -> Goodput:
    """Share and rate of the requests answered within `bound_seconds`, over all runs together.

    level: `batch` where requests ran one at a time, so that each stands for itself: the share has Wilson's interval, the
    rate a bootstrap over requests. `repeat` where they shared forwards: both are over runs, and unknown below five.
    Raises ValueError without runs or for a bound that is not positive.
    Source: goodput as in Zhong et al. 2024 (DistServe), arXiv 2401.09670, with the total latency as the bound.
    """
    if not bound_seconds > 0:
        raise ValueError(f"A latency bound lies above 0 seconds, not {bound_seconds}.")

    def in_time(request: ServedRequest) -> bool:
        return request.answered and request.seconds <= bound_seconds

    per_second = _per_second(runs, in_time, level, confidence, draws, generator)
    within = sum(in_time(request) for run in runs for request in run.requests)
    requests = sum(len(run.requests) for run in runs)
    if level == "batch":
        found = wilson_interval(within, requests, confidence)
        share = RatioInterval(found.rate, found.low, found.high, level, requests, confidence)
    else:
        counts = [[Batch(sum(map(in_time, run.requests)), len(run.requests))] for run in runs]
        share = throughput_interval(counts, level=level, confidence=confidence, draws=draws, generator=generator)
    return Goodput(bound_seconds, within, requests, share, per_second)


def correct_per_second(
    runs: Sequence[ServedRun],
    *,
    level: Literal["repeat", "batch"],
    confidence: float = 0.95,
    draws: int = 4000,
    generator: np.random.Generator,
) -> RatioInterval:
    """Correct answers over seconds of makespan, all runs together; `level` as in `goodput`.

    Speed and quality of the same generations in one number: a fast decoder that is often wrong does not win by it.
    Raises ValueError without runs, or where a request that was answered was not judged.
    """
    if any(request.answered and request.correct is None for run in runs for request in run.requests):
        raise ValueError("An answered request was not judged, so correct answers cannot be counted.")
    return _per_second(
        runs, lambda request: request.answered and bool(request.correct), level, confidence, draws, generator
    )


def _per_second(
    runs: Sequence[ServedRun],
    counts: Callable[[ServedRequest], bool],
    level: Literal["repeat", "batch"],
    confidence: float,
    draws: int,
    generator: np.random.Generator,
) -> RatioInterval:
    if not runs:
        raise ValueError("Need at least one run.")
    if not any(counts(request) for run in runs for request in run.requests):
        # Draws of nothing but zeros give an interval without width.
        number = len(runs) if level == "repeat" else sum(len(run.requests) for run in runs)
        return RatioInterval(0.0, None, None, level, number, confidence, "interval unknown: no request counts")
    if level == "repeat":
        repeats = [[Batch(sum(map(counts, run.requests)), run.makespan_seconds)] for run in runs]
    else:
        # Time between requests belongs to none of them: each bears its share, so that they add up to the makespan.
        scales = [run.makespan_seconds / sum(request.seconds for request in run.requests) for run in runs]
        repeats = [
            [Batch(float(counts(request)), request.seconds * scale) for request in run.requests]
            for run, scale in zip(runs, scales, strict=True)
        ]
    return throughput_interval(repeats, level=level, confidence=confidence, draws=draws, generator=generator)
