"""Do the books close? Count times separately measured cost per forward, plus the host's items, against the wall time."""

from __future__ import annotations

import time

from dllm_audit.backend import Backend
from dllm_audit.measure.books import close_books
from dllm_audit.models.loading import LoadedModel
from dllm_audit.plugins import load_plugins
from dllm_audit.records import Failure, Generation, Request
from tests.benchmarks.models import LLADA_60M, LLAMA_60M, random_model, random_prompts

PROMPT, GEN, REQUESTS = 256, 64, 4
SETTINGS = {
    "uncached": {"gen_length": GEN, "tokens_per_step": 4},
    "prefixcache": {"gen_length": GEN, "tokens_per_step": 1},
    "dualcache": {"gen_length": GEN, "tokens_per_step": 1},
    "ar": {"gen_length": GEN},
}


def main() -> None:
    """60 M random parameters, prompt 256, 64 new tokens, block 32, float32; discrepancy = (predicted - wall) / wall"""
    backends = load_plugins().backends
    llada, llama = random_model("bench-llada-60m", LLADA_60M), random_model("bench-llama-60m", LLAMA_60M)
    print(f"{'backend':<12} {'in flight':>9} {'wall s':>8} {'predicted s':>12} {'discrepancy':>12} {'items/wall':>11}")
    for concurrency in (1, 4):
        for name, settings in SETTINGS.items():
            row = measure(backends[name], llama if name == "ar" else llada, settings, concurrency)
            print(f"{name:<12} {concurrency:>9} {row}")


def measure(backend: Backend, model: LoadedModel, settings: dict, concurrency: int) -> str:
    session = backend.open(model, settings)
    prompts = random_prompts(REQUESTS, PROMPT, model.traits.vocab_size)
    requests = [Request(str(n), prompt_ids=prompt) for n, prompt in enumerate(prompts)]
    session.warm_up(requests, concurrency)
    results: list[Generation | Failure] = []
    began = time.perf_counter()
    log = session.generate(requests, results.append, concurrency)
    wall = time.perf_counter() - began
    books = close_books(log, wall, session.forward_costs)
    assert books is not None
    assert all(isinstance(result, Generation) for result in results)
    items = sum(log.seconds.values()) / wall
    return f"{wall:>8.3f} {books.predicted_seconds:>12.3f} {books.discrepancy:>+12.1%} {items:>11.1%}"
