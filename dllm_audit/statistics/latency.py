"""Latency percentiles of requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan

import numpy as np
from scipy.stats import quantile_test


@dataclass(frozen=True)
class LatencyPercentile:
    """One percentile in seconds. `low` or `high` is None where so few requests do not bound it."""

    percentile: float
    seconds: float
    low: float | None
    high: float | None
    requests: int
    confidence: float


def latency_percentile(seconds: Sequence[float], percentile: float, confidence: float = 0.95) -> LatencyPercentile:
    """The nearest-rank percentile: the smallest latency that `percentile` % of the requests do not exceed.

    The interval assumes independent requests and nothing else; those of one batch are not independent.
    Raises ValueError for no requests, a negative or infinite latency, or a percentile beyond 0..100.
    Source: the binomial interval of an order statistic (scipy `quantile_test`), Conover 1999, section 3.2.
    """
    times = np.asarray(seconds, dtype=float)
    if times.size == 0 or not np.isfinite(times).all() or (times < 0).any():
        raise ValueError("Latencies must be finite, not negative, and at least one.")
    if not 0 < percentile < 100:
        raise ValueError(f"A percentile lies between 0 and 100, not {percentile}.")
    value = float(np.percentile(times, percentile, method="inverted_cdf"))
    test = quantile_test(times, q=value, p=percentile / 100)
    interval = test.confidence_interval(confidence)
    low, high = (None if isnan(end) else float(end) for end in (interval.low, interval.high))
    return LatencyPercentile(percentile, value, low, high, int(times.size), confidence)
