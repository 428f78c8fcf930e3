"""How far two decoders of one model give the same tokens: what committing together, or an approximate cache, changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dllm_audit.analysis.figures import Figure
from dllm_audit.analysis.pooled import pooled, rate
from dllm_audit.analysis.text_quality import answer_ids


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
        pooled(parts, "share", "documents", "no answer has a token"),
        rate(sum(a == b for a, b in known), len(known), "documents"),
    )


def no_agreement(reason: str) -> Agreement:
    """An agreement that is not known, and why."""
    unknown = Figure(None, "share", "measured", reason=reason)
    return Agreement(unknown, unknown)
