"""Stored rows that cannot be true: a file may be damaged, and one bad row must neither end a report nor colour it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isclose, isfinite
from typing import Any

from dllm_audit.records import FORWARD_KINDS, TIME_ITEMS

#: Columns that every answered request has, and those that may be empty.
_ALWAYS = ("total_seconds", "answered_tokens", "committed_tokens")
_MAYBE = (
    "ttft_seconds",
    "delivered_seconds",
    "queue_seconds",
    "elapsed_seconds",
    "prompt_tokens",
    "committing_forwards",
    "query_positions",
    "scored_tokens",
    "standard_error",
    *(f"{item}_seconds" for item in TIME_ITEMS),
    *(f"{kind}_forwards" for kind in FORWARD_KINDS),
)


def asks_for_likelihoods(run: Mapping[str, Any]) -> bool:
    """Whether a run scored given answers instead of decoding text: it then has no tokens of its own to count."""
    return (run.get("output_type") or "generate_until") != "generate_until"


def speed_alone(run: Mapping[str, Any]) -> str:
    """What a run was given that measured speed alone, in words; empty for a run of a task, which has a quality too."""
    prompts = run["manifest"].get("prompts")
    facts = prompts.get("speed_alone") if isinstance(prompts, Mapping) else None
    if not isinstance(facts, Mapping):
        return ""
    words = f"{facts.get('prompt_tokens')} prompt tokens of {facts.get('prompts')}"
    fixed = not run["settings"].get("stop_at_eos")
    words += f", every output {run['settings'].get('gen_length')} positions long" if fixed else ""
    return f"fixed work: {words}" if fixed or facts.get("prompts") != "text" else words


def stands_alone(run: Mapping[str, Any]) -> bool:
    """Whether every request of a run had the engine to itself and queued for nobody, so that requests are independent."""
    return bool(run["concurrency"] == 1 and run.get("load", "closed") == "closed")


def sound(value: Any) -> bool:
    """Whether a value can be a time or a count: a number, finite and not negative."""
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and value >= 0


def finite(value: float | None) -> float | None:
    """A figure that may be negative, or None where it is no number."""
    return value if value is not None and isfinite(value) else None


def is_damaged(row: Mapping[str, Any]) -> bool:
    """Whether an answered request has a time or a count that cannot be true. A failed one has none."""
    if row["error_type"] is not None:
        return False
    empty_or_sound = (row.get(name) is None or sound(row[name]) for name in _MAYBE)
    likelihood = row.get("loglikelihood")
    if likelihood is not None and not isfinite(likelihood):
        return True
    return not (all(sound(row[name]) for name in _ALWAYS) and all(empty_or_sound)) or _contradicts_itself(row)


def _contradicts_itself(row: Mapping[str, Any]) -> bool:
    """Whether more was answered than was decoded, or the items of the time do not add up to it."""
    if row["answered_tokens"] > row["committed_tokens"] + (row.get("residual_masks") or 0):
        return True
    items = [row.get(f"{item}_seconds") for item in TIME_ITEMS]
    parts, total = sum(item for item in items if item is not None), row["total_seconds"]
    # An item that was not recorded may have taken what is missing.
    return not isclose(parts, total, rel_tol=0.01, abs_tol=1e-6) and (parts > total or None not in items)


def without_damaged(
    rows: Sequence[Mapping[str, Any]],
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """(the rows that can be used, those that cannot)."""
    kept: list[Mapping[str, Any]] = []
    damaged: list[Mapping[str, Any]] = []
    for row in rows:
        (damaged if is_damaged(row) else kept).append(row)
    return kept, damaged
