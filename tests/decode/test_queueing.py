"""How requests come to a session and what happens where the machine has no room: who waits, who is idle, who is kept."""

from __future__ import annotations

import itertools
import time

import pytest
import torch
from small_models import backend, model_of

from dllm_audit import Failure, Generation, Request
from dllm_audit.decode import limits
from dllm_audit.decode import session as session_module
from dllm_audit.decode.loop import DecodeLoop
from dllm_audit.decode.runner import ForwardRunner
from dllm_audit.errors import DeviceError, OutOfMemory
from dllm_audit.measure.clock import Clock
from dllm_audit.records import TIME_ITEMS

LLAMA = {"gen_length": 4}
BLOCKS = {"gen_length": 16, "block_length": 4, "tokens_per_step": 2}


class OneClock:
    """Every look takes a second, the host's and the device's alike, and sleeping takes as long as it says."""

    def __init__(self) -> None:
        self.second = 0.0
        self.slept: list[float] = []

    def now(self) -> float:
        self.second += 1
        return self.second

    def settle(self) -> None:
        return None

    def seconds(self, start: float, stop: float) -> float:
        return stop - start

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.second += seconds


@pytest.fixture
def ticking(monkeypatch) -> OneClock:
    one = OneClock()
    monkeypatch.setattr(session_module, "timer_for", lambda device: one)
    monkeypatch.setattr(session_module, "Clock", lambda timer: Clock(timer, host=lambda: one.second))
    monkeypatch.setattr("dllm_audit.measure.clock.time.sleep", one.sleep)
    return one


def requests(number: int, length: int = 5) -> list[Request]:
    return [Request(str(n), prompt_ids=(3 + n,) * length) for n in range(number)]


def decode(name, number, concurrency, settings, arrivals=None, keep=lambda result: None):
    """(results in the order in which they ended, the log)."""
    results = []

    def take(result):
        results.append(result)
        keep(result)

    session = backend(name).open(model_of("llama" if name == "ar" else "llada"), settings)
    return results, session.generate(requests(number), take, concurrency, arrivals=arrivals)


def alone(name, number, settings) -> dict[str, tuple[int, ...]]:
    return {result.id: result.output_ids for result in decode(name, number, 1, settings)[0]}


# -- who waits --


def test_in_a_closed_loop_nobody_queues(ticking):
    results, log = decode("ar", 4, 2, LLAMA)
    assert [result.queue_seconds for result in results] == [0.0] * 4
    assert "idle" not in log.seconds


def test_offline_all_are_there_at_once_and_their_queue_is_waiting(ticking):
    results, log = decode("ar", 3, 1, LLAMA, arrivals=[0.0] * 3)
    for result in results:
        assert sum(result.seconds[item] for item in TIME_ITEMS) == result.seconds["total"]
        assert result.seconds["waiting"] == result.queue_seconds
    first, second, third = results
    assert first.queue_seconds < 3
    # From the start until its text is back: what the first took, the second has waited.
    assert first.seconds["total"] <= second.queue_seconds < second.seconds["total"] <= third.queue_seconds
    assert third.seconds["total"] == pytest.approx(third.elapsed_seconds, abs=3)
    assert third.ttft_seconds > third.queue_seconds
    assert log.makespan_seconds == pytest.approx(third.elapsed_seconds, abs=1)


def test_in_an_open_loop_the_engine_idles_until_the_next_one_comes_and_that_time_is_nobodys(ticking):
    results, log = decode("ar", 2, 2, LLAMA, arrivals=[100.0, 1000.0])
    assert log.seconds["idle"] > 800
    assert sum(log.seconds.values()) == log.makespan_seconds > 1000
    assert len(ticking.slept) == 2
    for result in results:
        assert result.queue_seconds < 5
        assert result.seconds["total"] < 50
    assert sum(log.seconds.values()) - log.seconds["idle"] < 100


def test_who_arrives_while_others_are_decoded_joins_them_as_soon_as_a_row_is_free(ticking):
    free, log = decode("ar", 2, 2, LLAMA, arrivals=[0.0, 12.0])
    assert {shape.rows for shape in log.shapes} == {1, 2}
    assert free[1].queue_seconds < 12
    taken, _ = decode("ar", 2, 1, LLAMA, arrivals=[0.0, 12.0])
    # With one row it waits until the first has ended.
    assert taken[1].queue_seconds == pytest.approx(taken[0].elapsed_seconds - 12, abs=3)


def test_arrivals_change_no_token():
    apart = alone("dualcache", 5, BLOCKS)
    for arrivals in ([0.0] * 5, [0.0, 0.0, 0.001, 0.002, 0.01]):
        results, _ = decode("dualcache", 5, 3, BLOCKS, arrivals)
        assert {result.id: result.output_ids for result in results} == apart


def test_arrivals_go_on_through_requests_of_another_recipe():
    """They are decoded in a group of their own, afterwards: until then they wait."""
    asked = requests(2)
    asked[1] = Request("1", prompt_ids=(4,), settings={"tokens_per_step": 1})
    results = {}
    session = backend("dualcache").open(model_of("llada"), BLOCKS)
    session.generate(asked, lambda r: results.__setitem__(r.id, r), 2, arrivals=[0.0, 0.0])
    assert results["1"].queue_seconds >= results["0"].seconds["total"]
    assert results["1"].seconds["total"] == pytest.approx(results["1"].elapsed_seconds, abs=0.01)


# -- ramp and drain --


def test_ramp_ends_when_all_rows_are_in_flight_and_drain_begins_when_one_ends_with_nobody_left(ticking):
    results, log = decode("ar", 4, 2, LLAMA)
    assert log.rows == 2
    # Two requests are taken on, and that is all of the ramp.
    assert 0 < log.ramp_seconds < 10
    # All are equally long, so the last two end together.
    assert 0 < log.drain_seconds < 10

    uneven = [*requests(2), Request("long", prompt_ids=(9,), settings={"gen_length": 40})]
    session = backend("ar").open(model_of("llama"), LLAMA)
    results = []
    log = session.generate(uneven, results.append, 2)
    last_but_one = results[1].elapsed_seconds
    assert log.drain_seconds == pytest.approx(log.makespan_seconds - last_but_one, abs=6)
    assert log.drain_seconds > log.makespan_seconds / 2


def test_a_load_that_never_fills_the_rows_has_neither_ramp_nor_drain(ticking):
    _, log = decode("ar", 3, 2, LLAMA, arrivals=[0.0, 500.0, 1000.0])
    assert (log.rows, log.ramp_seconds, log.drain_seconds) == (2, None, None)


# -- blocks --


def test_a_block_decoder_delivers_its_first_block_and_an_autoregressive_one_its_first_token(ticking):
    (result,), _ = decode("dualcache", 1, 1, BLOCKS)
    assert len(result.block_seconds) == 4
    assert list(result.block_seconds) == sorted(result.block_seconds)
    assert result.delivered_seconds == result.block_seconds[0] > result.ttft_seconds
    assert result.block_seconds[-1] < result.seconds["total"]
    (result,), _ = decode("ar", 1, 1, LLAMA)
    assert result.block_seconds == ()
    assert result.delivered_seconds == result.ttft_seconds


def test_a_block_that_was_not_decoded_closed_never():
    free = decode("dualcache", 1, 1, BLOCKS)[0][0]
    end = next(token for token in free.output_ids[4:8] if token not in free.output_ids[:4])
    (result,), _ = decode("dualcache", 1, 1, {**BLOCKS, "eos_token_id": end, "stop_at_eos": True})
    assert len(result.block_seconds) == 2


def test_an_empty_answer_is_never_delivered_though_its_block_closed():
    free = decode("dualcache", 1, 1, BLOCKS)[0][0]
    settings = {**BLOCKS, "eos_token_id": free.output_ids[0], "stop_at_eos": True}
    (result,), _ = decode("dualcache", 1, 1, settings)
    assert (result.answered_tokens, result.delivered_seconds, len(result.block_seconds)) == (0, None, 1)


# -- no room --


def without_room_for(rows: int, monkeypatch, words="CUDA out of memory. Tried to allocate 2.00 GiB.", after=0):
    """Forwards of more than `rows` rows find no memory, from the forward after the first `after`. Counts them all."""
    inner, calls = ForwardRunner.run, []

    def run(self, slots, windows, mask_given=None):
        calls.append(len(slots))
        if len(slots) > rows and len(calls) > after:
            raise torch.OutOfMemoryError(words)
        return inner(self, slots, windows, mask_given)

    monkeypatch.setattr(ForwardRunner, "run", run)
    return calls


@pytest.mark.parametrize("name", ["dualcache", "ar"])
def test_a_forward_that_finds_no_memory_is_run_again_with_half_the_rows_and_every_answer_is_the_same(name, monkeypatch):
    settings = LLAMA if name == "ar" else BLOCKS
    apart = alone(name, 6, settings)
    calls = without_room_for(2, monkeypatch)
    results, log = decode(name, 6, 5, settings)
    assert {result.id: result.output_ids for result in results} == apart
    assert [n for n in calls if n > 2] == [5]
    assert log.rows == 2
    assert log.notes == (
        f"Memory did not hold 5 rows of {max(5 + settings['gen_length'], 0)} positions beside the model, so at most 2 were in flight.",
    )


def test_what_had_finished_before_memory_ran_out_is_kept_and_not_decoded_again(monkeypatch):
    apart = alone("ar", 6, LLAMA)
    calls = without_room_for(1, monkeypatch, after=6)
    results, log = decode("ar", 6, 2, LLAMA)
    assert {result.id: result.output_ids for result in results} == apart
    assert len(results) == 6
    # A prefill of two, three steps of two: two answers are there when it begins.
    assert calls[:8] == [2, 2, 2, 2, 2, 2, 2, 1]
    assert log.rows == 1


def test_of_a_request_that_was_begun_twice_the_first_time_was_waiting(monkeypatch, ticking):
    without_room_for(1, monkeypatch, after=3)
    results, log = decode("ar", 2, 2, LLAMA)
    for result in results:
        assert result.seconds["waiting"] > 5
        assert (result.forwards, result.seconds["denoise"]) == ({"prefill": 1, "denoise": 3}, 3)
        assert sum(result.seconds[item] for item in TIME_ITEMS) == result.seconds["total"]
        assert result.ttft_seconds > result.seconds["waiting"] / 2
    # What ran and came to nothing is in the log of the engine all the same: a prefill and two steps of two rows.
    assert {(s.kind, s.rows): s.count for s in log.shapes} == {
        ("prefill", 2): 1, ("denoise", 2): 2, ("prefill", 1): 2, ("denoise", 1): 6,
    }  # fmt: skip
    assert sum(log.seconds.values()) == log.makespan_seconds


def test_a_single_request_that_finds_no_memory_fails_alone(monkeypatch):
    inner = ForwardRunner.run

    def run(self, slots, windows, mask_given=None):
        if any(window.hi > 40 for window in windows):
            raise RuntimeError(
                "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried"
            )
        return inner(self, slots, windows, mask_given)

    monkeypatch.setattr(ForwardRunner, "run", run)
    session = backend("ar").open(model_of("llama"), LLAMA)
    asked = [*requests(2), Request("huge", prompt_ids=(3,) * 50), Request("after", prompt_ids=(8,))]
    results: dict[str, Generation | Failure] = {}
    log = session.generate(asked, lambda r: results.__setitem__(r.id, r), 3)
    assert results["huge"].type == "OutOfMemory"
    assert results["huge"].message.startswith("The device's memory does not hold this request's forward even alone (")
    assert all(isinstance(results[id], Generation) for id in ("0", "1", "after"))
    assert log.rows == 1


def test_rows_that_cannot_even_be_set_up_are_halved_before_anything_runs(monkeypatch):
    inner, tried = DecodeLoop.__init__, []

    def init(self, model, recipe, rows, *rest):
        tried.append(rows)
        if rows > 3:
            raise RuntimeError("CUDA error: out of memory")
        inner(self, model, recipe, rows, *rest)

    monkeypatch.setattr(DecodeLoop, "__init__", init)
    session = backend("ar").open(model_of("llama"), LLAMA)
    session.warm_up(requests(8), 8)
    assert tried == [8, 4, 2]
    results = []
    log = session.generate(requests(8), results.append, 8)
    # What warming up found out need not be found out again, and is said again.
    assert tried[3:] == [2]
    assert len(results) == 8
    assert log.notes == ("Memory did not hold 8 rows of 9 positions beside the model, so at most 2 were in flight.",)


def test_where_not_even_one_row_fits_the_run_ends_with_a_sentence(monkeypatch):
    def init(self, *arguments):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes")

    monkeypatch.setattr(DecodeLoop, "__init__", init)
    with pytest.raises(OutOfMemory) as error:
        decode("ar", 2, 2, LLAMA)
    assert str(error.value) == (
        "There is not enough memory for a single row of 9 positions beside the model. "
        "Lower gen_length, shorten the prompts, or use a smaller model."
    )


def test_on_a_cpu_rows_are_halved_before_memory_is_promised_that_is_not_there(monkeypatch):
    model = model_of("llama")
    # Two layers of keys and values, two heads of eight numbers of four bytes, and ten bytes of canvas: 266 a column.
    session = backend("ar").open(model, LLAMA)
    recipe, _ = session.recipe_for(requests(1)[0])
    assert limits.row_bytes(model, recipe, 9) == 10 * (2 * 2 * 2 * 8 * 4 + 10)

    class Free:
        available = 3 * 2660

    monkeypatch.setattr("psutil.virtual_memory", lambda: Free)
    assert limits.rows_that_fit(model, recipe, 16, 9) == 2
    assert limits.rows_that_fit(model, recipe, 3, 9) == 3
    results, log = decode("ar", 5, 5, LLAMA)
    assert (len(results), log.rows) == (5, 2)


# -- no device --

GONE = [
    torch.AcceleratorError("CUDA error: unspecified launch failure"),
    RuntimeError("CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be reported later"),
    RuntimeError("CUBLAS_STATUS_EXECUTION_FAILED when calling cublasGemmEx"),
]


@pytest.mark.parametrize("error", GONE, ids=["class", "words", "library"])
def test_a_device_that_vanishes_fails_what_was_in_flight_and_keeps_what_had_finished(error, monkeypatch):
    inner, calls = ForwardRunner.run, itertools.count(1)

    def run(self, slots, windows, mask_given=None):
        if next(calls) > 6:
            raise error
        return inner(self, slots, windows, mask_given)

    monkeypatch.setattr(ForwardRunner, "run", run)
    results: list[Generation | Failure] = []
    session = backend("ar").open(model_of("llama"), LLAMA)
    with pytest.raises(DeviceError) as end:
        session.generate(requests(6), results.append, 2)
    first = str(error).splitlines()[0]
    assert str(end.value) == (
        f"The device cpu failed: {first}. What had finished is kept, what was in flight has failed, and nothing more can run on "
        "it in this process. See to the device (dllm-audit doctor); a run then goes on with --resume."
    )
    assert [type(result).__name__ for result in results] == ["Generation", "Generation", "Failure", "Failure"]
    assert {(r.id, r.type, r.message) for r in results[2:]} == {
        (id, "DeviceError", f"The device cpu failed: {first}.") for id in ("2", "3")
    }


def test_a_device_that_says_only_at_the_end_that_it_failed_loses_the_request_that_just_ended_too(monkeypatch):
    """Device work is asynchronous: an error may come with any wait for it."""
    kept = []
    inner = Clock.pause

    def pause(self):
        if len(kept) == 1:
            raise torch.AcceleratorError("CUDA error: device-side assert triggered")
        inner(self)

    monkeypatch.setattr(Clock, "pause", pause)
    session = backend("ar").open(model_of("llama"), LLAMA)
    with pytest.raises(DeviceError):
        session.generate(requests(3), kept.append, 1)
    assert [(result.id, isinstance(result, Failure)) for result in kept] == [("0", False), ("1", True)]


def test_a_mistake_of_our_own_is_neither(monkeypatch):
    def run(self, *arguments):
        raise RuntimeError("The size of tensor a (3) must match the size of tensor b (4)")

    monkeypatch.setattr(ForwardRunner, "run", run)
    with pytest.raises(RuntimeError, match="The size of tensor a"):
        decode("ar", 1, 1, LLAMA)


def test_an_error_of_the_caller_is_not_taken_for_one_of_the_device(monkeypatch):
    def keep(result):
        raise RuntimeError("CUDA error: out of memory")

    with pytest.raises(RuntimeError, match="CUDA error"):
        decode("ar", 2, 1, LLAMA, keep=keep)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (torch.OutOfMemoryError("anything"), "memory"),
        (MemoryError(), "memory"),
        (RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"), "memory"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), "memory"),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "device"),
        (RuntimeError("HIP error: the operation cannot be performed"), "device"),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied (1x2 and 3x4)"), None),
        (ValueError("CUDA error"), None),
    ],
)
def test_memory_that_ran_out_and_a_device_that_is_gone_are_told_apart(error, kind):
    fault = limits.fault_of(error)
    assert (None if fault is None else fault.kind) == kind


def test_idling_sleeps_and_does_not_spin():
    began = time.process_time()
    _, log = decode("ar", 2, 1, {"gen_length": 1}, arrivals=[0.0, 0.3])
    assert log.seconds["idle"] > 0.2
    assert time.process_time() - began < 0.2
