"""The metric of the tasks `lists_*`, referenced by their YAML files."""

from __future__ import annotations

from typing import Any

from dllm_audit.models.tiny.problems import is_valid_list


def score_list(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """Return {"valid": 1.0} when the answer is one of the right ones, else {"valid": 0.0}.

    doc: a line of `data/lists_*.jsonl`, with `kind`, `items`, `new_item` (empty unless kind is "replace").
    results: the generated text, one string.
    """
    return {"valid": float(is_valid_list(doc["kind"], doc["items"], doc["new_item"], results[0]))}
