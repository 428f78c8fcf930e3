"""What a batch of four gains over one request, beside what its bare forwards allow, in float32 and bfloat16.

On 2026-11-30 on two shared x86-64 cores, one thread, float32: dualcache at one token per step gains 1.46x and its bare forwards
allow 1.47x (1.50x of 1.51x in bfloat16), ar 2.29x of 2.31x. A step of four rows multiplies four times as much, and on a CPU one
row of 32 positions keeps it busy already.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass

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
    """Measure one backend and print it."""
    settings = {"gen_length": GEN, **({} if backend == "ar" else {"block_length": BLOCK}), **schedule}
    found = measure_gain(model, backend, settings, random_prompts(BATCH, PROMPT, model.traits.vocab_size), REPEATS)
    name = ", ".join(f"{key} {value}" for key, value in schedule.items()) or "one token"
    print(
        f"{backend:<12} {name:<18} {dtype:<9} {found.alone_seconds / BATCH:>9.2f} {found.together_seconds:>9.2f} "
        f"{found.gain:>5.2f} {found.allowed:>8.2f} {found.overhead:>19.1%}  {found.differ:.1%} of {found.tokens}",
        flush=True,
    )


@dataclass(frozen=True)
class Gain:
    """What requests in flight together gain over one after the other. Seconds of all of them, the fastest of the turns.

    gain: alone / together. allowed: the same of their bare forwards. overhead: of the loop over the forwards, together.
    differ: the share of `tokens` that another token has taken in the batch.
    """

    alone_seconds: float
    together_seconds: float
    allowed: float
    overhead: float
    differ: float
    tokens: int

    @property
    def gain(self) -> float:
        return self.alone_seconds / self.together_seconds


def measure_gain(
    model: LoadedModel, backend: str, settings: dict, prompts: Sequence[tuple[int, ...]], turns: int
) -> Gain:
    """Decode `prompts` one at a time and all together, taking turns."""
    session = load_plugins().backends[backend].open(model, settings)
    batch = len(prompts)
    seconds: dict[int, list[float]] = {1: [], batch: []}
    forwards: dict[int, list[float]] = {1: [], batch: []}
    tokens: dict[int, dict[str, tuple[int, ...]]] = {}
    for turn in range(turns):
        for size in (1, batch) if turn % 2 == 0 else (batch, 1):
            # One request alone stands for all: they take the same time.
            chosen = prompts if turn == 0 or size == batch else prompts[:1]
            log, tokens_now, took = decode(session, chosen, size)
            tokens.setdefault(size, tokens_now)
            share = batch / len(chosen)
            seconds[size].append(took * share)
            forwards[size].append(sum(shape.seconds for shape in log.shapes) * share)
    bare = min(forwards[batch])
    pairs = [(a, b) for id, alone in tokens[1].items() for a, b in zip(alone, tokens[batch][id], strict=True)]
    return Gain(
        alone_seconds=min(seconds[1]),
        together_seconds=min(seconds[batch]),
        allowed=min(forwards[1]) / bare,
        overhead=min(seconds[batch]) / bare - 1,
        differ=sum(a != b for a, b in pairs) / len(pairs),
        tokens=len(pairs),
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
