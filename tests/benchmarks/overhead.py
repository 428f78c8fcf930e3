"""What is no forward pass: the loop around its forwards, the measuring itself, and the harness around the decoder."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from dllm_audit.backend import Backend
from dllm_audit.decode import session as session_module
from dllm_audit.evaluate import execution
from dllm_audit.evaluate.bench import SpeedWork
from dllm_audit.measure.clock import Clock, Stopwatch
from dllm_audit.models.loading import LoadedModel
from dllm_audit.plugins import load_plugins
from dllm_audit.records import FORWARD_KINDS, TIME_ITEMS, Request
from dllm_audit.store.database import Store
from tests.benchmarks.models import LLADA_60M, LLAMA_60M, embedded, random_model, random_prompts

PROMPT, GEN, TURNS, REQUESTS = 256, 64, 7, 16

#: At most this share of a run on the 60 M model may be the harness.
MOST_HARNESS = 0.03


def main() -> None:
    """prompt 256, 64 new tokens, one token per step, float32, one request in flight"""
    backends = load_plugins().backends
    tiny, large = embedded("tiny-mdm"), random_model("bench-llada-60m", LLADA_60M)
    tiny_ar, large_ar = embedded("tiny-ar"), random_model("bench-llama-60m", LLAMA_60M)
    loop(backends, tiny, large, tiny_ar, large_ar)
    cells = [("dualcache", tiny), ("dualcache", large), ("ar", tiny_ar), ("ar", large_ar)]
    measuring([(backends[name], model) for name, model in cells])
    harness([(backends[name], model) for name, model in cells])


def settings_of(name: str) -> dict[str, Any]:
    if name == "ar":
        return {"gen_length": GEN}
    return {"gen_length": GEN, "tokens_per_step": 4 if name == "uncached" else 1}


def loop(
    backends: dict[str, Backend], tiny: LoadedModel, large: LoadedModel, tiny_ar: LoadedModel, large_ar: LoadedModel
) -> None:
    """The decode loop over its bare forwards."""
    models = {
        ("uncached", "prefixcache", "dualcache"): (tiny, large),
        ("ar",): (tiny_ar, large_ar),
        ("block",): (embedded("tiny-block"),),
    }
    print("the decode loop: overhead = (wall - forwards) / forwards")
    print(f"{'backend':<12} {'model':<16} {'forwards s':>11} {'sampling s':>11} {'host s':>8} {'overhead':>9}")
    for names, sizes in models.items():
        for model in sizes:
            for name in names:
                session = backends[name].open(model, settings_of(name))
                request = Request("0", prompt_ids=random_prompts(1, PROMPT, model.traits.vocab_size)[0])
                session.warm_up([request], 1)
                log = session.generate([request], lambda result: None)
                forwards = sum(shape.seconds for shape in log.shapes)
                print(
                    f"{name:<12} {model.source.ref:<16} {forwards:>11.3f} {log.seconds.get('sampling', 0):>11.4f} "
                    f"{log.seconds.get('host', 0):>8.4f} {log.makespan_seconds / forwards - 1:>9.1%}"
                )


class Unmarked(Clock):
    """A clock that books nothing: what decoding takes when nobody measures inside it."""

    def start(self, id: str, queued_seconds: float = 0.0) -> None:
        self.open[id] = Stopwatch()

    def mark(self, label: str, ids: Iterable[str] | None) -> tuple[Any, Any]:
        return self._last, self._last

    def first_token(self, id: str) -> None:
        return None

    def block_closed(self, id: str) -> None:
        return None


def measuring(cells: list[tuple[Backend, LoadedModel]]) -> None:
    """The same decode without marks, with marks as in every run, and with a step trace, taking turns."""
    print("\nthe measuring itself: median wall seconds of the same decode, taking turns; cost against no marks at all")
    print(
        f"{'backend':<12} {'model':<16} {'no marks s':>11} {'marks s':>9} {'cost':>7} {'step trace s':>13} {'cost':>7}"
    )
    for backend, model in cells:
        session = backend.open(model, settings_of(backend.name))
        request = Request("0", prompt_ids=random_prompts(1, PROMPT, model.traits.vocab_size)[0])

        def decode(traced: bool, session: Any = session, request: Request = request) -> float:
            began = time.perf_counter()
            session.generate([request], lambda result: None, traced=traced)
            return time.perf_counter() - began

        def unmarked(decode: Callable[[bool], float] = decode) -> float:
            with patch.object(session_module, "Clock", Unmarked):
                return decode(False)

        sides: list[Callable[[], float]] = [unmarked, lambda d=decode: d(False), lambda d=decode: d(True)]  # type: ignore[misc]
        times: list[list[float]] = [[], [], []]
        for turn in range(TURNS + 1):
            for side in (0, 1, 2) if turn % 2 else (2, 1, 0):
                seconds = sides[side]()
                if turn:
                    times[side].append(seconds)
        bare, marked, traced = (statistics.median(side) for side in times)
        print(
            f"{backend.name:<12} {model.source.ref:<16} {bare:>11.4f} {marked:>9.4f} {marked / bare - 1:>7.1%} "
            f"{traced:>13.4f} {traced / bare - 1:>7.1%}"
        )


def harness(cells: list[tuple[Backend, LoadedModel]]) -> None:
    """A whole run as `run` makes it, after loading: what of it is neither text work, forward nor sampling."""
    print(
        f"\nthe harness: a run of {REQUESTS} requests as `run` makes it, after loading. Decoder: tokenise, forwards, sampling, "
        "detokenise.\nHarness: everything else but what decodes or runs forwards once more (warm-up, traces, books), which "
        f"stands beside; on the 60 M model at most {MOST_HARNESS:.0%}"
    )
    print(
        f"{'backend':<12} {'model':<16} {'decoder s':>10} {'host s':>7} {'storing s':>10} {'others s':>9} {'harness':>8}  "
        f"{'warm-up s':>9} {'traces s':>9} {'books s':>8}"
    )
    for backend, model in cells:
        with TemporaryDirectory() as folder, Store.open(Path(folder) / "results.duckdb", write=True) as store:
            work = SpeedWork(PROMPT, REQUESTS, random_ids=True)
            cell = execution.Cell(backend, model.source, "bench", work, settings_of(backend.name), 1, 0)
            # The random models lie in no folder, so they have no files to name by their hashes.
            with patch.object(execution, "weight_files", lambda *where: []):
                began = time.perf_counter()
                run_id = execution.execute(
                    cell, model, execution.Conditions("benchmark"), store, lambda told: None, 0.0
                )
                wall = time.perf_counter() - began
            rows, outside = store.requests(run_id), store.run(run_id)["manifest"]["outside_seconds"]
        items = {item: sum(row[f"{item}_seconds"] for row in rows) for item in TIME_ITEMS}
        decoder = sum(
            items[item] for item in ("tokenise", *(k for k in FORWARD_KINDS if k in items), "sampling", "detokenise")
        )
        again = {name: outside[name] for name in ("warm_up", "tracing", "books")}
        whole = wall - sum(again.values())
        host, storing = items["host"], outside["storing"]
        share = 1 - decoder / whole
        verdict = "" if model.parameters < 50e6 else "  within" if share <= MOST_HARNESS else "  BEYOND"
        print(
            f"{backend.name:<12} {model.source.ref:<16} {decoder:>10.2f} {host:>7.3f} {storing:>10.3f} "
            f"{whole - decoder - host - storing:>9.3f} {share:>8.1%}  {again['warm_up']:>9.2f} {again['tracing']:>9.2f} "
            f"{again['books']:>8.2f}{verdict}"
        )
