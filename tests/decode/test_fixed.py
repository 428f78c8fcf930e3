"""Steps of one fixed shape: their tokens are those of eager ones, whatever is compiled or captured."""

from __future__ import annotations

import dataclasses
import functools

import pytest
import torch
from small_models import CELLS, backend, model_of

from dllm_audit import Request
from dllm_audit.decode.fixed import FixedForwards
from dllm_audit.errors import ModelError, UsageError
from dllm_audit.models.loading import load_model

#: Backends whose cached steps are always as wide.
FIXED = ("dualcache", "dualcache on dream", "dualcache on llada-moe", "block", "ar")
REQUESTS = [
    Request(str(n), prompt_ids=tuple(3 + (5 * i + n) % 80 for i in range(length)), settings={"gen_length": window})
    for n, (length, window) in enumerate([(1, 1), (7, 13), (8, 8), (9, 16), (33, 5)])
]


def decode(name, engine, concurrency, given, requests=REQUESTS):
    model = dataclasses.replace(model_of(CELLS[name]), engine=engine)
    results = {}
    log = backend(name).open(model, given).generate(requests, lambda r: results.__setitem__(r.id, r), concurrency, True)
    return results, log


def facts(results):
    return {id: (r.output_ids, dict(r.forwards), r.query_positions, r.trace.forwards) for id, r in results.items()}


@pytest.mark.parametrize("name", FIXED)
def test_a_row_reads_its_own_keys_when_one_before_it_has_ended(name, monkeypatch):
    """Batches are filled up to a power of two, so with three rows left of four one is as large as the key-value buffer."""
    lengths = [(1, 1), (7, 13), (8, 8), (9, 16), (33, 5), (3, 2), (4, 20), (5, 9), (12, 3)]
    requests = [
        Request(str(n), prompt_ids=tuple(3 + (5 * i + n) % 80 for i in range(length)), settings={"gen_length": window})
        for n, (length, window) in enumerate(lengths)
    ]
    given = {"block_length": 6, "threshold": 0.3} if name.startswith("dualcache") else {}
    eager, _ = decode(name, "eager", 8, given, requests)
    with_gaps = []
    run = FixedForwards.run
    monkeypatch.setattr(
        FixedForwards, "run", lambda self, slots, windows: with_gaps.append(list(slots)) or run(self, slots, windows)
    )
    fixed, _ = decode(name, "fixed", 8, given, requests)
    assert facts(fixed) == facts(eager)
    # Rows move up when one before them has ended, so only forwards of some of them have gaps.
    assert any(slots[-1] >= len(slots) for slots in with_gaps) == name.startswith("block")


@pytest.mark.parametrize("concurrency", [1, 3, 5])
@pytest.mark.parametrize("name", FIXED)
def test_steps_of_a_fixed_shape_give_the_tokens_forwards_and_counts_of_eager_ones(name, concurrency):
    given = {"block_length": 6, "threshold": 0.3} if name.startswith("dualcache") else {}
    eager, log = decode(name, "eager", concurrency, given)
    fixed, fixed_log = decode(name, "fixed", concurrency, given)
    assert facts(fixed) == facts(eager)
    counts = [(s.kind, s.width, s.rows, s.count, s.decided) for s in log.shapes]
    assert [(s.kind, s.width, s.rows, s.count, s.decided) for s in fixed_log.shapes] == counts


def test_every_step_but_no_refresh_and_no_prefill_has_the_fixed_shape(monkeypatch):
    ran = []
    run = FixedForwards.run
    monkeypatch.setattr(
        FixedForwards, "run", lambda self, slots, windows: ran.append(windows[0].kind) or run(self, slots, windows)
    )
    for name, kinds in (("dualcache", {"denoise"}), ("block", {"denoise", "commit"}), ("ar", {"denoise"})):
        ran.clear()
        _, log = decode(name, "fixed", 2, {"block_length": 6} if name == "dualcache" else {})
        assert len(ran) == sum(s.count for s in log.shapes if s.kind in kinds)
        assert set(ran) == kinds


@pytest.mark.parametrize("name", ["dualcache", "ar"])
def test_a_compiled_step_gives_the_tokens_of_an_eager_one_and_is_compiled_before_any_clock_runs(name, monkeypatch):
    """With dynamo's own backend, which traces and generates no code: a real compiler takes minutes for this."""
    compiled = []
    trace = functools.partial(torch.compile, backend="eager")
    monkeypatch.setattr(torch, "compile", lambda step, **options: compiled.append(options) or trace(step, **options))
    given = {"block_length": 6} if name == "dualcache" else {}
    eager, _ = decode(name, "eager", 2, given)
    found, _ = decode(name, "compile", 2, given)
    assert facts(found) == facts(eager)
    assert compiled == [{"dynamic": False}] * 2  # for one row and for two
    torch._dynamo.reset()


def test_steps_are_compiled_however_many_runs_a_process_makes(monkeypatch):
    """torch compiles one piece of code eight times for other shapes, and then runs it as it is."""
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    trace = functools.partial(torch.compile, backend=count)
    monkeypatch.setattr(torch, "compile", lambda step, **options: trace(step, **options))
    model = dataclasses.replace(model_of(CELLS["ar"]), engine="compile")
    for length in range(10):
        request = Request("0", prompt_ids=(5,) * (length + 3), settings={"gen_length": 2})
        backend("ar").open(model, {}).generate([request], lambda result: None)
    assert len(graphs) == 10
    torch._dynamo.reset()


@pytest.mark.parametrize("name", ["uncached", "prefixcache"])
def test_an_engine_that_would_change_nothing_is_refused(name):
    with pytest.raises(UsageError) as error:
        decode(name, "fixed", 1, {})
    assert str(error.value) == (
        "--engine fixed is for steps of a fixed shape: those of dualcache (with a block_length), block and ar. "
        "This decoder has none. Use --engine eager."
    )


def test_what_cannot_be_compiled_is_said_and_not_silently_run_otherwise(monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("no compiler\nand more")

    monkeypatch.setattr(torch, "compile", broken)
    with pytest.raises(ModelError) as error:
        decode("ar", "compile", 1, {})
    assert "cannot run with --engine compile: no compiler. Use --engine eager." in str(error.value)


def test_graphs_need_a_cuda_device():
    with pytest.raises(ModelError) as error:
        load_model(model_of(CELLS["ar"]).source, "cpu", "float32", engine="cudagraph")
    assert str(error.value) == "--engine cudagraph needs a CUDA device, and this is cpu. Use eager or compile."
