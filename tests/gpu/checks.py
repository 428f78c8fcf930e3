"""Checks: the same tokens on CUDA as recorded, alone as in a batch, under every engine; clocks and books that hold."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dllm_audit.measure.books import close_books
from dllm_audit.measure.energy import find_energy_source
from dllm_audit.measure.environment import code_commit, describe, readings
from dllm_audit.measure.hazards import timing_hazards
from dllm_audit.models.loading import LoadedModel
from dllm_audit.plugins import load_plugins
from dllm_audit.records import EngineLog, Failure, Generation, Request
from tests.benchmarks.models import random_prompts
from tests.decode.small_models import CELLS, FAMILY_OF
from tests.gpu.models import Context, with_engine
from tests.gpu.steps import Found

#: Prompts and windows of unequal length, as (prompt tokens, new tokens).
SHAPES = ((1, 1), (7, 13), (8, 8), (9, 16), (33, 5), (64, 24))

#: Backends whose cached steps have one shape, with settings under which blocks end unevenly.
FIXED = {
    "dualcache": {"block_length": 6, "threshold": 0.3},
    "dualcache on dream": {"block_length": 6, "threshold": 0.3},
    "block": {},
    "ar": {},
}

#: How far the books may be off, and the clock from the wall.
BOOKS_TOLERANCE, CLOCK_TOLERANCE = 0.05, 0.03


def decode(
    model: LoadedModel, backend: str, settings: dict, requests: Sequence[Request], concurrency: int
) -> tuple[dict[str, Generation], EngineLog, float]:
    """(generations by id, the engine's log, seconds of the whole call). Raises AssertionError for a failure."""
    results: dict[str, Generation] = {}

    def keep(result: Generation | Failure) -> None:
        assert isinstance(result, Generation), result
        results[result.id] = result

    session = load_plugins().backends[backend].open(model, settings)
    began = time.perf_counter()
    log = session.generate(requests, keep, concurrency)
    return results, log, time.perf_counter() - began


def small_requests(model: LoadedModel) -> list[Request]:
    """Requests of unequal shapes, with ids that every small model knows."""
    return [
        Request(str(n), prompt_ids=tuple(3 + (5 * i + n) % 80 for i in range(length)), settings={"gen_length": window})
        for n, (length, window) in enumerate(SHAPES)
    ]


def differing(one: dict[str, Generation], other: dict[str, Generation]) -> list[str]:
    """Ids of the requests whose tokens differ."""
    return [id for id in one if one[id].output_ids != other[id].output_ids]


def environment(context: Context) -> Found:
    """What the machine is, and what spoils timing on it."""
    facts = readings(context.on)
    facts = describe(context.on) | facts
    hazards = timing_hazards(facts)
    source = find_energy_source(context.on)
    counter = source.reason if source.counter is None else source.counter.name
    sentence = f"{facts.get('gpu') or facts['cpu']}, torch {facts['torch']}; energy: {counter}"
    if hazards:
        sentence += "; " + " ".join(hazards)
    return Found(
        None, sentence, {"environment": facts, "warnings": hazards, "energy": counter, "code_commit": code_commit()}
    )


def golden(context: Context) -> Found:
    """Recorded decodes of the original programs, in float32."""
    from tests.golden.golden_counts import count_families

    counts = list(count_families(context.device, 1 if context.dry else None))
    right, total = sum(found.right for found in counts), sum(found.total for found in counts)
    facts = {"families": [vars(found) for found in counts]}
    return Found(right == total, f"{right} of {total} recorded cases are exact", facts)


def batches(context: Context) -> Found:
    """Every backend in float32: the tokens of a request alone are those in a batch of requests of other lengths."""
    facts, wrong = {}, []
    for cell, family in (FAMILY_OF if context.dry else CELLS).items():
        model = context.small(family)
        backend = cell.partition(" on ")[0]
        settings = {} if backend in ("ar", "block", "dream") else {"block_length": 8, "tokens_per_step": 2}
        requests = small_requests(model)[: 3 if context.dry else None]
        alone, _, _ = decode(model, backend, settings, requests, 1)
        for together in sorted({3, len(requests)}):
            bad = differing(alone, decode(model, backend, settings, requests, together)[0])
            facts[f"{cell}, {together} in flight"] = bad
            wrong += [f"{cell} with {together} in flight (requests {', '.join(bad)})"] if bad else []
    sentence = f"{len(facts)} pairs of alone and batched have the same tokens" if not wrong else "; ".join(wrong)
    return Found(not wrong, sentence, {"differing": facts})


def same_under(
    context: Context, engine: str, cells: Sequence[str] = tuple(FIXED), concurrencies: Sequence[int] = (1, 3)
) -> Found:
    """Whether an engine gives the tokens of eager forwards, with so many requests in flight."""
    facts, wrong = {}, []
    for cell in cells:
        settings = FIXED[cell]
        model = context.small(CELLS[cell])
        backend = cell.partition(" on ")[0]
        requests = small_requests(model)[: 3 if context.dry else None]
        for concurrency in concurrencies:
            eager, _, _ = decode(model, backend, settings, requests, concurrency)
            found, _, seconds = decode(with_engine(model, engine), backend, settings, requests, concurrency)
            bad = differing(eager, found)
            facts[f"{cell}, {concurrency} in flight"] = {"differing": bad, "seconds_with_preparation": seconds}
            wrong += [f"{cell} with {concurrency} in flight"] if bad else []
    sentence = f"{engine} gives the tokens of eager in {len(facts) - len(wrong)} of {len(facts)} cases"
    return Found(not wrong, sentence + (f"; not in {', '.join(wrong)}" if wrong else ""), facts)


def fixed_shapes(context: Context) -> Found:
    """Steps of one fixed shape, neither compiled nor captured."""
    return same_under(context, "fixed")


def cuda_graphs(context: Context) -> Found:
    """Steps that were captured as CUDA graphs."""
    return same_under(context, "cudagraph")


def compiled(context: Context) -> Found:
    """Steps that torch.compile compiled, which takes long: two backends, for one row and for two."""
    return same_under(context, "compile", ("dualcache", "ar"), (2,))


def clock(context: Context) -> Found:
    """The items of the clock add up to the wall time, and count x separately measured cost predicts it."""
    prompt, gen, number = (24, 16, 3) if context.dry else (256, 128, 6)
    facts, wrong = {}, []
    for backend, kind in (("ar", "ar"), ("dualcache", "diffusion"), ("uncached", "diffusion")):
        model = context.large(kind)
        requests = [
            Request(str(n), prompt_ids=ids)
            for n, ids in enumerate(random_prompts(number, prompt, model.traits.vocab_size))
        ]
        settings = {"gen_length": gen, **({} if kind == "ar" else {"block_length": 8, "tokens_per_step": 2})}
        session = load_plugins().backends[backend].open(model, settings)
        session.warm_up(requests[:2], 2)
        for concurrency in (1, number):
            results, log, wall = decode(model, backend, settings, requests, concurrency)
            items = sum(log.seconds.values())
            books = close_books(log, items, session.forward_costs)
            assert books is not None
            # A request's own clock: its items against its total.
            apart = max(
                abs(sum(v for k, v in r.seconds.items() if k != "total") - r.seconds["total"]) for r in results.values()
            )
            name = f"{backend}, {concurrency} in flight"
            facts[name] = {
                "wall_seconds": wall,
                "clock_seconds": items,
                "clock_over_wall": items / wall,
                "books_discrepancy": books.discrepancy,
                "items_against_total_seconds": apart,
                "seconds": dict(log.seconds),
            }
            if apart > 1e-6 or not 0 < items <= wall * (1 + CLOCK_TOLERANCE):
                wrong.append(f"{name}: the clock has {items:.3f} s of {wall:.3f} s")
            if not context.dry and abs(books.discrepancy) > BOOKS_TOLERANCE:
                wrong.append(f"{name}: the books are off by {books.discrepancy:+.1%}")
    worst = max(abs(each["books_discrepancy"]) for each in facts.values())
    sentence = f"items add up; books at most {worst:.1%} off" + (f"; {'; '.join(wrong)}" if wrong else "")
    return Found(not wrong, sentence, facts)


def precision(context: Context) -> Found:
    """How often bfloat16 changes a token: against float32, and in a batch against alone. Trained embedded models."""
    number, gen = (2, 8) if context.dry else (40, 64)
    facts = {}
    for backend, name in (
        ("ar", "tiny-ar"),
        ("dualcache", "tiny-mdm"),
        ("uncached", "tiny-mdm"),
        ("block", "tiny-block"),
    ):
        settings = {"gen_length": gen, "stop_at_eos": True}
        exact, half = (context.embedded(name, dtype) for dtype in ("float32", "bfloat16"))
        requests = [Request(str(n), prompt=prompt) for n, prompt in enumerate(problem_prompts(number))]
        reference = decode(exact, backend, settings, requests, 4)[0]
        alone = decode(half, backend, settings, requests, 1)[0]
        batched = decode(half, backend, settings, requests, 4)[0]
        facts[backend] = {
            "documents": number,
            "tokens_other_than_float32": disagreement(reference, batched),
            "answers_other_than_float32": len(differing(reference, batched)) / number,
            "tokens_other_in_the_batch": disagreement(alone, batched),
            "answers_other_in_the_batch": len(differing(alone, batched)) / number,
        }
    worst = max(each["answers_other_in_the_batch"] for each in facts.values())
    against = max(each["answers_other_than_float32"] for each in facts.values())
    return Found(
        None, f"bfloat16 changes up to {against:.0%} of the answers, a batch in bfloat16 up to {worst:.0%}", facts
    )


def disagreement(one: dict[str, Generation], other: dict[str, Generation]) -> float:
    """Of the positions of the longer of two answers, the share with another token."""
    differ = total = 0
    for id in one:
        a, b = one[id].answer_ids, other[id].answer_ids
        total += max(len(a), len(b))
        differ += max(len(a), len(b)) - sum(x == y for x, y in zip(a, b, strict=False))
    return differ / total if total else 0.0


def problem_prompts(number: int) -> list[str]:
    """The first prompts of the embedded task gsm_mini."""
    import json

    import dllm_audit.evaluate

    path = Path(dllm_audit.evaluate.__file__).parent / "tasks" / "data" / "gsm_mini_test.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines()[:number]
    return [f"Question: {json.loads(line)['question']}\nAnswer:" for line in lines]


def crowd(context: Context) -> Found:
    """More requests in flight than memory holds: fewer are, the run goes on, and it says so."""
    model = context.large("ar")
    # Keys and values of this many rows take three times the memory that the device has.
    per_row = 2 * model.module.config.num_hidden_layers * model.module.config.num_key_value_heads
    per_row *= (model.module.config.head_dim or 64) * model.dtype.itemsize * _CROWDED
    import torch

    rows = min(65_536, 3 * torch.cuda.get_device_properties(context.on).total_memory // per_row)
    prompts = random_prompts(rows, 4, model.traits.vocab_size)
    long = random_prompts(1, _CROWDED - 4, model.traits.vocab_size)[0]
    requests = [Request(str(n), prompt_ids=ids) for n, ids in enumerate(prompts)]
    requests[0] = replace(requests[0], prompt_ids=long)
    results, log, seconds = decode(model, "ar", {"gen_length": 1}, requests, rows)
    fitted = log.rows or rows
    return Found(
        len(results) == rows and fitted < rows and bool(log.notes),
        f"of {rows} rows {fitted} were in flight, all {len(results)} requests were answered in {seconds:.0f} s",
        {"rows": rows, "in_flight": fitted, "notes": list(log.notes), "seconds": seconds},
    )


#: Positions of the longest row of a crowd: memory is set aside for as many in each.
_CROWDED = 2048
