"""Shares over answers: of those that are so, and of what all of them count together, each with an interval."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dllm_audit.analysis.figures import Figure
from dllm_audit.statistics.proportions import wilson_interval
from dllm_audit.statistics.throughput import MINIMUM_CLUSTERS, Batch, throughput_interval

SEED = 20250528
"""Of the bootstrap: the same rows always give the same interval."""


def draws_for(clusters: int) -> int:
    """How often to draw: a thousand times is enough where clusters are many, and a report of thousands stays quick.

    The half width is a multiple of the standard error of the draws, which a thousand give within about 2 %.
    """
    return 4000 if clusters <= 300 else 1000


def pooled(parts: Sequence[tuple[float, float]], unit: str, over: str, nothing: str) -> Figure:
    """The sum of what each of `parts` counts over the sum of what it could have counted, with an interval over them.

    parts: (count, out of), one pair an answer or document; a pair out of 0 says nothing and is left out. unit "share": the
    interval stays within 0..1. over: what they are, for the basis. nothing: why the figure is unknown where nothing is left.
    """
    kept = [(count, out_of) for count, out_of in parts if out_of > 0]
    if not kept:
        return Figure(None, unit, "measured", reason=nothing)
    batches = [Batch(count, out_of) for count, out_of in kept]
    generator = np.random.default_rng(SEED)
    found = throughput_interval([batches], level="batch", draws=draws_for(len(kept)), generator=generator)
    if found.low is None or found.high is None:
        reason = f"interval unknown: {len(kept)} of at least {MINIMUM_CLUSTERS} {over}"
        return Figure(found.ratio, unit, "measured", reason=reason)
    if found.high - found.ratio < 1e-9:
        # Drawing again from answers that are all alike says nothing about others.
        return Figure(found.ratio, unit, "measured", reason=f"interval unknown: all {len(kept)} {over} are alike in it")
    high = min(1.0, found.high) if unit == "share" else found.high
    return Figure(found.ratio, unit, "measured", found.low, high, basis=f"{len(kept)} {over}")


def rate(successes: int, trials: int, over: str) -> Figure:
    """The share of `trials` that are successes, with Wilson's interval. over: what they are, for the basis."""
    if not trials:
        return Figure(None, "share", "measured", reason=f"there are no {over}")
    found = wilson_interval(successes, trials)
    return Figure(found.rate, "share", "measured", found.low, found.high, basis=f"{trials} {over}")
