"""Reads the recorded traces and says each case in this product's settings."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dllm_audit import EngineLog, Failure, Generation

FOLDER = Path(__file__).parent
MODEL = FOLDER / "tiny-llada"
FAMILIES = ("llada_original", "llada_fastdllm_24cc59e", "llada_fastdllm_a9b81e4")
DREAM = ("dream_original", "dream_fastdllm_nocache", "dream_fastdllm_block")


@dataclass(frozen=True)
class Row:
    """One row of a recorded case. window: its recorded output after the prompt; commits: non-empty sets, in order.

    `commits` hold (position, token, probability) with positions counted from the first token of this row.
    """

    id: str
    tag: str
    batch: int
    backend: str
    settings: dict[str, Any]
    prompt_ids: tuple[int, ...]
    window: tuple[int, ...]
    commits: tuple[tuple[tuple[int, int, float], ...], ...]
    forward_calls: int
    residual_masks: int
    seed: int | None = None


@dataclass
class Outside:
    """What a wrapper around the model saw: calls, and the query positions (rows x width) that went in."""

    calls: int = 0
    positions: int = 0


@dataclass
class Decoded:
    """Results by id; what the wrapper saw until each was finished (at concurrency 1: of that row alone); the log."""

    results: dict[str, Generation | Failure] = field(default_factory=dict)
    outside: dict[str, Outside] = field(default_factory=dict)
    total: Outside = field(default_factory=Outside)
    log: EngineLog | None = None


def cases(family: str) -> list[dict[str, Any]]:
    """The recorded cases of a family, as they were written."""
    with gzip.open(FOLDER / "traces" / f"{family}.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def backend_of(case: dict[str, Any]) -> str:
    """The backend that decodes as the recorded function did."""
    if "dream" in case["model"]:
        dual = case["settings"].get("dual_cache")
        return "dream" if dual is None else "dualcache" if dual else "prefixcache"
    function = case["reference"]["function"]
    return "dualcache" if "dual" in function else "prefixcache" if "prefix" in function else "uncached"


def settings_of(family: str, case: dict[str, Any]) -> dict[str, Any]:
    """The recorded call in our settings, quirks included."""
    recorded = case["settings"]
    names = ("gen_length", "block_length", "steps", "threshold", "factor")
    settings = {name: recorded[name] for name in names if recorded.get(name) is not None}
    settings |= {"mask_token_id": case["mask_token_id"], "stop_at_eos": False}
    if family in DREAM:
        return settings | _dream_settings(family, recorded)
    if family == "dinfer_decoders":
        return settings
    if case["reference"]["repo"] != "ML-GSAI/LLaDA" and family != "llada_original":
        return settings | {"compat": "fast-dllm", "confidence_dtype": "float64"}
    settings |= {"compat": "llada", "confidence_dtype": "model"}
    if recorded.get("cfg_scale"):
        settings["cfg_scale"] = recorded["cfg_scale"]
    for flag, eos in (("logits_eos_inf", "suppress_logits"), ("confidence_eos_eot_inf", "suppress_confidence")):
        if recorded.get(flag):
            settings |= {"eos": eos, "eos_token_id": 121, "eot_token_id": 123}
    return settings


#: Names of the criteria in the programs for Dream, in our words.
CRITERIA = {"maskgit_plus": "probability", "topk_margin": "margin", "entropy": "entropy", "origin": "random"}


def _dream_settings(family: str, recorded: dict[str, Any]) -> dict[str, Any]:
    settings: dict[str, Any] = {"gen_length": recorded["max_new_tokens"]}
    if family != "dream_original":
        settings["compat"] = "fast-dllm"
    if recorded["alg"] == "confidence_threshold":
        return settings
    # The block version ranks by entropy, whatever it was asked for.
    return settings | {"confidence": "entropy" if family.endswith("block") else CRITERIA[recorded["alg"]]}


def rows(family: str) -> Iterator[Row]:
    """Every row of every case of a family; the padding of left-padded rows is taken away."""
    for case in cases(family):
        padding = case["settings"].get("attention_mask")
        for number, prompt in enumerate(case["prompt_ids"]):
            pads = padding[number].count(0) if padding else 0
            steps = [step["commits"][number] for step in case["steps"]]
            yield Row(
                id=f"{case['id']}#{number}",
                tag=case["tag"],
                batch=case["batch_size"],
                backend=backend_of(case),
                settings=settings_of(family, case),
                prompt_ids=tuple(prompt[pads:]),
                window=tuple(case["output_ids"][number][len(prompt) :]),
                commits=tuple(tuple((at - pads, token, p) for at, token, p in step) for step in steps if step),
                forward_calls=case["forward_calls"],
                residual_masks=case.get("residual_masks") or 0,
                seed=case.get("torch_manual_seed"),
            )
