"""How far two decoders of one model give the same tokens: what committing together, or an approximate cache, changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dllm_audit.analysis.figures import Figure
from dllm_audit.analysis.pooled import pooled, rate
from dllm_audit.analysis.text_quality import answer_ids
from dllm_audit.statistics.proportions import wilson_interval
from dllm_audit.statistics.throughput import MINIMUM_CLUSTERS


@dataclass(frozen=True)
class Agreement:
    """tokens: of all positions of both answers, the share with the same token; a position that one answer lacks differs.

    answers: the share of documents with the same answer, token for token. A word more at the beginning moves every
    later token, so `tokens` says how far two decodes are the same, not how much their meaning differs.
    """

    tokens: Figure
    answers: Figure


def token_agreement(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> Agreement:
    """The agreement of two runs from their stored requests, paired by document."""
    ids = [(answer_ids(ours), answer_ids(theirs)) for ours, theirs in pairs]
    known = [(a, b) for a, b in ids if a is not None and b is not None]
    if not known:
        return no_agreement("the two runs have no answered document in common whose tokens are known")
    parts = [(sum(x == y for x, y in zip(a, b, strict=False)), max(len(a), len(b))) for a, b in known]
    return Agreement(
        _with_ends(pooled(parts, "share", "paired documents", "no answer has a token"), sum(n > 0 for _, n in parts)),
        rate(sum(a == b for a, b in known), len(known), "documents"),
    )


def _with_ends(share: Figure, documents: int) -> Figure:
    """A share that is the same in all of `documents`, with an interval that drawing them again cannot give.

    By Wilson's interval at least so many documents of all are like these; the others may agree nowhere, or everywhere.
    """
    if share.value is None or share.has_interval or documents < MINIMUM_CLUSTERS:
        return share
    alike = wilson_interval(documents, documents).low
    low, high = share.value * alike, share.value * alike + (1 - alike)
    basis = f"{documents} paired documents, all alike in it, so its ends are Wilson's"
    return replace(share, low=low, high=high, reason="", basis=basis)


def no_agreement(reason: str) -> Agreement:
    """An agreement that is not known, and why."""
    unknown = Figure(None, "share", "measured", reason=reason)
    return Agreement(unknown, unknown)
