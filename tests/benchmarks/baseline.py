"""Is the autoregressive baseline strong? `ar` beside transformers' own `generate`, same weights, same process."""

from __future__ import annotations

import statistics

from dllm_audit.analysis.baseline import speed_over
from dllm_audit.decode.session import encode_text
from dllm_audit.evaluate.loading import load_tasks
from dllm_audit.evaluate.prompts import build_prompts
from dllm_audit.measure.library import compare_with_library
from dllm_audit.models.loading import LoadedModel
from dllm_audit.plugins import load_plugins
from tests.benchmarks.models import LLAMA_60M, embedded, random_model, random_prompts

PROMPT, GEN, TASK = 256, 64, "gsm_mini"


def main() -> None:
    """64 new tokens, float32, five turns; ratio = speed of ar / speed of the library's (above 1: ours is faster)"""
    print(
        f"{'model':<16} {'prompts':<10} {'batch':>5} {'ar s':>8}  {'library':<14} {'s':>8} {'ratio':>7}  {'95 %':<14} tokens equal"
    )
    tiny, large = embedded("tiny-ar"), random_model("bench-llama-60m", LLAMA_60M)
    fixed = [(model, f"{PROMPT} ids", random_prompts(8, PROMPT, model.traits.vocab_size)) for model in (tiny, large)]
    for model, name, prompts in (fixed[0], (tiny, TASK, task_prompts(tiny, 8)), fixed[1]):
        for batch in (1, 8):
            line(model, name, prompts[:batch])


def task_prompts(model: LoadedModel, number: int) -> list[tuple[int, ...]]:
    """The first prompts of a task, which are of unequal length."""
    return [
        encode_text(model, item.prompt)
        for item in build_prompts(load_tasks(TASK)[TASK], model.tokenizer, False, number)
    ]


def line(model: LoadedModel, name: str, prompts: list[tuple[int, ...]]) -> None:
    """Measure one batch and print it."""
    session = load_plugins().backends["ar"].open(model, {"gen_length": GEN})
    found = compare_with_library(session, model, prompts, batch=len(prompts), gen_length=GEN, most_seconds=1e9)
    ours, *others = found.sides
    for theirs in others:
        ratio = speed_over(found, theirs.name)
        medians = [statistics.median(side.seconds) for side in (ours, theirs)]
        print(
            f"{model.source.ref:<16} {name:<10} {len(prompts):>5} {medians[0]:>8.3f}  {theirs.name:<14} {medians[1]:>8.3f} "
            f"{ratio.value or 0:>7.2f}  {ratio.low or 0:.2f} to {ratio.high or 0:.2f}   {theirs.equal} of {found.prompts}"
        )
