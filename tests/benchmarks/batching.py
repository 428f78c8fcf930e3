"""What a batch of four gains over one request, beside what its bare forwards allow, in float32 and bfloat16."""

from __future__ import annotations

import dataclasses
import time

import torch

from dllm_audit.models.loading import LoadedModel
from dllm_audit.plugins import load_plugins
from dllm_audit.records import EngineLog, Failure, Generation, Request
from tests.benchmarks.models import LLADA_60M, LLAMA_60M, random_model, random_prompts

PROMPT, GEN, BLOCK, BATCH, REPEATS = 256, 128, 32, 4, 3
#: Backend, settings. No probability of a random model reaches .9, so the threshold commits one token per step.
CELLS = [
    ("uncached", {"tokens_per_step": 4}),
    ("prefixcache", {"tokens_per_step": 4}),
    ("prefixcache", {"threshold": 0.9}),
    ("dualcache", {"tokens_per_step": 4}),
    ("dualcache", {"threshold": 0.9}),
    ("dualcache", {"tokens_per_step": 1}),
    ("ar", {}),
]


def main() -> None:
    """prompt 256, gen 128, block 32; gain = tokens/s at batch 4 / at batch 1; allowed = the same of the bare forwards alone"""
    print(
        f"{'backend':<12} {'schedule':<18} {'dtype':<9} {'batch 1 s':>9} {'batch 4 s':>9} {'gain':>5} {'allowed':>8} "
        f"{'loop over forwards':>19}  {'tokens that differ in the batch':<31}"
    )
    for dtype in ("float32", "bfloat16"):
        models = [random_model("bench-llada-60m", LLADA_60M), random_model("bench-llama-60m", LLAMA_60M)]
        diffusion, causal = (in_dtype(model, dtype) for model in models)
        for backend, schedule in CELLS:
            line(causal if backend == "ar" else diffusion, backend, schedule, dtype)


def in_dtype(model: LoadedModel, dtype: str) -> LoadedModel:
    kind = getattr(torch, dtype)
    return dataclasses.replace(model, module=model.module.to(kind), dtype=kind)


def line(model: LoadedModel, backend: str, schedule: dict, dtype: str) -> None:
    """Measure one backend, batch 1 and 4 taking turns, and print it."""
    settings = {"gen_length": GEN, **({} if backend == "ar" else {"block_length": BLOCK}), **schedule}
    prompts = random_prompts(BATCH, PROMPT, model.traits.vocab_size)
    session = load_plugins().backends[backend].open(model, settings)
    seconds: dict[int, list[float]] = {1: [], BATCH: []}
    forwards: dict[int, list[float]] = {1: [], BATCH: []}
    tokens: dict[int, dict[str, tuple[int, ...]]] = {}
    for turn in range(REPEATS):
        for batch in (1, BATCH) if turn % 2 == 0 else (BATCH, 1):
            # One request at batch 1 stands for four: they take the same time.
            chosen = prompts if turn == 0 or batch == BATCH else prompts[:1]
            log, tokens_now, took = decode(session, chosen, batch)
            tokens.setdefault(batch, tokens_now)
            share = BATCH / len(chosen)
            seconds[batch].append(took * share)
            forwards[batch].append(sum(shape.seconds for shape in log.shapes) * share)
    one, four = min(seconds[1]), min(seconds[BATCH])
    bare_one, bare_four = min(forwards[1]), min(forwards[BATCH])
    pairs = [(a, b) for id, alone in tokens[1].items() for a, b in zip(alone, tokens[BATCH][id], strict=True)]
    differ = sum(a != b for a, b in pairs) / len(pairs)
    name = ", ".join(f"{key} {value}" for key, value in schedule.items()) or "one token"
    print(
        f"{backend:<12} {name:<18} {dtype:<9} {one / BATCH:>9.2f} {four:>9.2f} {one / four:>5.2f} "
        f"{bare_one / bare_four:>8.2f} {four / bare_four - 1:>19.1%}  {differ:.1%} of {len(pairs)}",
        flush=True,
    )


def decode(session, prompts, batch: int) -> tuple[EngineLog, dict[str, tuple[int, ...]], float]:
    """The engine's log, the tokens by request, and the seconds of the whole call."""
    results: dict[str, tuple[int, ...]] = {}

    def keep(result: Generation | Failure) -> None:
        assert isinstance(result, Generation), result
        results[result.id] = result.output_ids

    began = time.perf_counter()
    log = session.generate([Request(str(n), prompt_ids=prompt) for n, prompt in enumerate(prompts)], keep, batch)
    return log, results, time.perf_counter() - began
