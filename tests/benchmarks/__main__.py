"""`python -m tests.benchmarks [NAME ...]`: run the named benchmarks, all of them by default."""

from __future__ import annotations

import sys

import torch

from dllm_audit.measure.environment import describe, readings
from dllm_audit.measure.hazards import timing_hazards
from tests.benchmarks import aa, baseline, batching, books, coverage, memory, overhead

BENCHMARKS = {
    "books": books.main,
    "baseline": baseline.main,
    "overhead": overhead.main,
    "batching": batching.main,
    "memory": memory.main,
    "coverage": coverage.main,
    "aa": aa.main,
}


def main() -> None:
    names = sys.argv[1:] or list(BENCHMARKS)
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        sys.exit(f"There is no benchmark {unknown[0]!r}. Known: {', '.join(BENCHMARKS)}.")
    facts = describe(torch.device("cpu")) | readings()
    print(f"{facts['cpu']}, {facts['threads']} threads, torch {facts['torch']}, transformers {facts['transformers']}")
    for hazard in timing_hazards(facts):
        print(f"Warning: {hazard}")
    for name in names:
        print(f"\n== {name}: {BENCHMARKS[name].__doc__}")
        BENCHMARKS[name]()


main()
