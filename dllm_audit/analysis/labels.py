"""Short names of runs, as tables, charts and sentences use them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dllm_audit.analysis.asked import is_tuning, template_of
from dllm_audit.analysis.references import is_one_token_per_step
from dllm_audit.analysis.rows import asks_for_likelihoods
from dllm_audit.measure.load import load_words

#: Settings that are named where they were given; the others are in the table of settings.
_NAMED = {
    "threshold": "threshold {}",
    "factor": "factor {}",
    "entropy_bound": "entropy bound {}",
    "tokens_per_step": "{} tokens/step",
    "steps": "{} steps",
    "steps_per_block": "{} steps/block",
    "block_length": "block {}",
    "temperature": "temperature {}",
    "cfg_scale": "cfg {}",
    "compat": "as {}",
}


def set_by_hand(given: Mapping[str, Any]) -> list[str]:
    """The settings among `given` that make a run another one, in words, for example ["threshold 0.9"]."""
    words = []
    for name, form in _NAMED.items():
        value = given.get(name)
        if value is not None:
            text = form.format(f"{value:g}" if isinstance(value, float) else value)
            words.append(text.replace("tokens/", "token/").replace("steps", "step") if value == 1 else text)
    return words


def label(run: Mapping[str, Any], concurrency: bool = False) -> str:
    """Backend and what was set by hand, for example "dualcache, threshold 0.9"; with `concurrency` also that."""
    settings, sources = run["settings"], run["setting_sources"]
    overridden = settings.get("overridden") or []
    parts = [str(run["backend"])]
    if asks_for_likelihoods(run):
        if run["kind"] == "diffusion":
            parts.append("exact" if settings.get("exact") else f"{settings.get('samples')} samples")
    elif run["kind"] == "diffusion" and is_one_token_per_step(run):
        parts.append("1 token/step")
    given = {
        name: settings.get(name) for name, source in sources.items() if source == "option" and name not in overridden
    }
    if "1 token/step" in parts:
        given = {
            name: value for name, value in given.items() if name not in ("tokens_per_step", "steps", "steps_per_block")
        }
    parts += set_by_hand(given)
    if template := template_of(run):
        parts.append(f"template {template}")
    if is_tuning(run):
        parts.append("to choose on")
    if words := load_words(run.get("load") or "closed", run.get("arrival_rate")):
        parts.append(words)
    if concurrency or run["concurrency"] > 1:
        parts.append(f"concurrency {run['concurrency']}")
    if run["repeat"]:
        parts.append(f"repeat {run['repeat'] + 1}")
    if run["role"] in ("baseline", "control"):
        parts.append(str(run["role"]))
    return ", ".join(parts)
