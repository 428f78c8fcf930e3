"""What an audit that stops when it is decided says: a line for every part, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dllm_audit.analysis.words import count

if TYPE_CHECKING:
    from dllm_audit.evaluate.sequential import AuditState


def audit_line(state: AuditState) -> str:
    """Where an audit stands after a part."""
    audit = state.audit
    speed, quality = state.speed, state.quality
    found = f"{_ratio(speed.value, speed.low, speed.high)} the speed, quality {_points(quality.value, quality.low, quality.high)}"
    line = f"  {state.done}/{state.planned} documents: {found}"
    if audit.decision != "undecided":
        return f"{line}: {audit.decision}"
    more = audit.more_pairs()
    return line + (": open" if more is None else f": open, about {more:,} more")


def audit_sentence(facts: Mapping[str, Any]) -> str:
    """How an audit ended: the decision, the intervals, the pairs, and the requests that it saved."""
    speed, quality = facts["speed"], facts["quality"]
    allowed = f"a loss of {facts['margin'] * 100:g} points of {facts['metric']} was allowed"
    if facts["stopped"] == "decided":
        head = f"Decided after {facts['decided_after']} of {facts['documents_planned']} documents: {facts['decision']}"
    else:
        head = f"Undecided after all {count(facts['documents_planned'], 'document')}"
    bar = facts["faster_than"]
    beyond = f", where the same configuration differs from itself by {bar:.3f}x" if bar > 1 else ""
    sentences = [
        f"{head} ({allowed}).",
        f"Speed {_ratio(speed['value'], speed['low'], speed['high'])}{beyond}; quality "
        f"{_points(quality['value'], quality['low'], quality['high'])}; over {count(facts['pairs'], 'pair')}, "
        "95 % whenever one stops.",
    ]
    fixed = facts["fixed_plan_pairs"]
    if facts["stopped"] == "decided":
        sentences.append(
            f"{count(facts['requests_saved'], 'request')} of {facts['requests'] + facts['requests_saved']} saved."
        )
        more = fixed - facts["decided_after"]
        if more:
            than = f"{abs(more):,} {'more' if more > 0 else 'fewer'}"
            sentences.append(f"A plan of one look, for decoders that are equal, takes {fixed:,} pairs, {than}.")
    elif facts["more_pairs"]:
        sentences.append(f"About {facts['more_pairs']:,} more pairs would decide it if the rest is like these.")
    elif fixed is not None:
        sentences.append(f"A plan of one look, for decoders that are equal, takes {fixed:,} pairs.")
    return " ".join(sentences)


def _ratio(value: float | None, low: float | None, high: float | None) -> str:
    if value is None:
        return "unknown"
    return f"{value:.2f}x" + ("" if low is None or high is None else f" ({low:.2f} to {high:.2f})")


def _points(value: float | None, low: float | None, high: float | None) -> str:
    if value is None:
        return "unknown"
    ends = "" if low is None or high is None else f" ({low * 100:+.1f} to {high * 100:+.1f})"
    return f"{value * 100:+.1f}{ends} points"
