"""Is the autoregressive baseline strong? `ar` beside transformers' own `generate`, same weights, same process."""

from __future__ import annotations

import statistics
import time

import torch

from dllm_audit.models.loading import LoadedModel
from dllm_audit.plugins import load_plugins
from dllm_audit.records import Failure, Generation, Request
from tests.benchmarks.models import LLAMA_60M, embedded, random_model, random_prompts

PROMPT, GEN, REPEATS = 256, 64, 5


def main() -> None:
    """prompt 256, 64 new tokens, float32; ratio = seconds of generate / seconds of ar (above 1: ours is faster)"""
    print(f"{'model':<16} {'batch':>5} {'ar s':>8} {'generate s':>11} {'ratio':>7}  tokens equal")
    for model in (embedded("tiny-ar"), random_model("bench-llama-60m", LLAMA_60M)):
        for batch in (1, 8):
            ours, theirs, same = side_by_side(model, batch)
            print(f"{model.source.ref:<16} {batch:>5} {ours:>8.3f} {theirs:>11.3f} {theirs / ours:>7.2f}  {same}")


def side_by_side(model: LoadedModel, batch: int) -> tuple[float, float, bool]:
    """Median seconds of ours and theirs, taking turns, and whether they gave the same tokens."""
    prompts = random_prompts(batch, PROMPT, model.traits.vocab_size)
    session = load_plugins().backends["ar"].open(model, {"gen_length": GEN})
    ids = torch.tensor(prompts)

    def ours() -> list[tuple[int, ...]]:
        results: dict[str, tuple[int, ...]] = {}

        def keep(result: Generation | Failure) -> None:
            assert isinstance(result, Generation)
            results[result.id] = result.output_ids

        session.generate([Request(str(n), prompt_ids=p) for n, p in enumerate(prompts)], keep, batch)
        return [results[str(n)] for n in range(batch)]

    def theirs() -> list[tuple[int, ...]]:
        model.module.config.is_causal = True
        with torch.inference_mode():
            out = model.module.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=GEN,
                min_new_tokens=GEN,
                do_sample=False,
                pad_token_id=0,
            )
        model.module.config.is_causal = False
        return [tuple(row) for row in out[:, PROMPT:].tolist()]

    same = ours() == theirs()
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(REPEATS):
        for run, times in zip((ours, theirs), seconds, strict=True):
            began = time.perf_counter()
            run()
            times.append(time.perf_counter() - began)
    return statistics.median(seconds[0]), statistics.median(seconds[1]), same
