"""What of a task a run was asked: all of its documents or a part of them, in the task's own words or by a template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dllm_audit.analysis.rows import asks_for_likelihoods


def template_of(run: Mapping[str, Any]) -> str | None:
    """The name of the template that worded the prompts of a run; None where the task's own prompts were asked."""
    name = _prompt_facts(run, "template").get("name")
    return name if isinstance(name, str) else None


def asked_alike(run: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two runs of a task were asked in the same words, and both for a result or both to choose a setting."""
    return template_of(run) == template_of(other) and is_tuning(run) == is_tuning(other)


def is_tuning(run: Mapping[str, Any]) -> bool:
    """Whether a run only helped to choose a setting, so that it is no result."""
    return _prompt_facts(run, "part").get("name") == "tuning"


def choice_notes(run: Mapping[str, Any]) -> list[str]:
    """What a reader must know of how the setting of a run was chosen, or of what the run is for."""
    if is_tuning(run):
        return ["The run helped to choose a setting, on documents that judge nothing. It is no result."]
    choice = run["manifest"].get("choice")
    if isinstance(choice, dict) and isinstance(choice.get("sentence"), str):
        return [f"{choice['sentence']} This run is on the other documents."]
    return []


def swept(runs: Sequence[Mapping[str, Any]]) -> list[tuple[str, int]]:
    """(backend, how many thresholds) of which several were run on the same documents, nothing else differing."""
    groups: dict[str, set[Any]] = {}
    backends: dict[str, str] = {}
    for run in runs:
        settings = {name: value for name, value in run["settings"].items() if name != "threshold"}
        prompts = run["manifest"].get("prompts")
        alike = [run[name] for name in ("backend", "model", "task", "concurrency", "fidelity")]
        key = repr([*alike, sorted(settings.items(), key=str), prompts, asks_for_likelihoods(run)])
        if run["settings"].get("threshold") is not None:
            groups.setdefault(key, set()).add(run["settings"]["threshold"])
            backends[key] = str(run["backend"])
    return [(backends[key], len(thresholds)) for key, thresholds in groups.items() if len(thresholds) > 1]


def _prompt_facts(run: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    prompts = run["manifest"].get("prompts")
    found = prompts.get(name) if isinstance(prompts, dict) else None
    return found if isinstance(found, dict) else {}
