"""Is the autoregressive baseline strong? `ar` beside transformers' own `generate`, same weights, same process."""

from __future__ import annotations

import statistics

from dllm_audit.analysis.baseline import speed_over
from dllm_audit.measure.library import compare_with_library
from dllm_audit.plugins import load_plugins
from tests.benchmarks.models import LLAMA_60M, embedded, random_model, random_prompts

PROMPT, GEN = 256, 64


def main() -> None:
    """prompt 256, 64 new tokens, float32, five turns; ratio = speed of ar / speed of the library's (above 1: ours is faster)"""
    print(f"{'model':<16} {'batch':>5} {'ar s':>8}  {'library':<14} {'s':>8} {'ratio':>7}  {'95 %':<14} tokens equal")
    for model in (embedded("tiny-ar"), random_model("bench-llama-60m", LLAMA_60M)):
        for batch in (1, 8):
            session = load_plugins().backends["ar"].open(model, {"gen_length": GEN})
            prompts = random_prompts(batch, PROMPT, model.traits.vocab_size)
            found = compare_with_library(session, model, prompts, batch=batch, gen_length=GEN, most_seconds=1e9)
            ours, *others = found.sides
            for theirs in others:
                ratio = speed_over(found, theirs.name)
                medians = [statistics.median(side.seconds) for side in (ours, theirs)]
                print(
                    f"{model.source.ref:<16} {batch:>5} {medians[0]:>8.3f}  {theirs.name:<14} {medians[1]:>8.3f} "
                    f"{ratio.value or 0:>7.2f}  {ratio.low or 0:.2f} to {ratio.high or 0:.2f}   {theirs.equal} of {found.prompts}"
                )
