"""The clock: every interval belongs to one item of every request in flight, and the items add up."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dllm_audit import Request
from dllm_audit.decode import session as session_module
from dllm_audit.measure.clock import Clock, HostTimer
from dllm_audit.models.loading import find_model, load_model
from dllm_audit.plugins import load_plugins
from dllm_audit.records import TIME_ITEMS

TINY_LLADA = Path(__file__).parents[1] / "golden" / "tiny-llada"


class FakeTimer:
    """Shows the second that it was last set to."""

    def __init__(self) -> None:
        self.second = 0.0
        self.settled = 0

    def now(self) -> float:
        return self.second

    def settle(self) -> None:
        self.settled += 1

    def seconds(self, start: float, stop: float) -> float:
        return stop - start


class Ticking(FakeTimer):
    """Every look at it takes a second."""

    def now(self) -> float:
        self.second += 1
        return self.second


@pytest.fixture
def timer():
    return FakeTimer()


def items(**seconds: float) -> dict[str, float]:
    return {**dict.fromkeys(TIME_ITEMS, 0.0), **seconds}


def test_a_request_alone_owns_every_second_between_its_start_and_its_stop(timer):
    clock = Clock(timer)
    clock.start("a")
    for label, at in (
        ("tokenise", 1),
        ("host", 3),
        ("prefill", 6),
        ("sampling", 10),
        ("denoise", 15),
        ("detokenise", 21),
    ):
        timer.second = at
        clock.mark(label, ["a"])
    watch = clock.stop("a")
    clock.pause()
    assert clock.items(watch) == items(tokenise=1, host=2, prefill=3, sampling=4, denoise=5, detokenise=6, total=21)
    assert clock.total == 21


def test_work_on_another_request_is_waiting_and_shared_work_belongs_to_all_that_took_part(timer):
    clock = Clock(timer)
    clock.start("a")
    timer.second = 2
    clock.mark("tokenise", ["a"])
    clock.start("b")
    timer.second = 5
    clock.mark("tokenise", ["b"])  # a waits 3
    timer.second = 9
    clock.mark("denoise", ["a", "b"])
    timer.second = 10
    clock.mark("detokenise", ["a"])  # b waits 1
    first = clock.stop("a")
    timer.second = 16
    clock.mark("denoise", ["b"])
    second = clock.stop("b")
    clock.pause()
    assert clock.items(first) == items(tokenise=2, waiting=3, denoise=4, detokenise=1, total=10)
    assert clock.items(second) == items(tokenise=3, denoise=4 + 6, waiting=1, total=14)
    assert clock.totals == {"tokenise": 5, "denoise": 10, "detokenise": 1, "host": 0}
    assert clock.total == 16


def test_time_outside_the_region_belongs_to_nobody(timer):
    clock = Clock(timer)
    clock.start("a")
    clock.start("b")
    timer.second = 3
    clock.mark("denoise", ["a", "b"])
    clock.stop("a")
    clock.pause()
    timer.second = 100  # a result is being stored
    clock.resume()
    timer.second = 104
    clock.mark("denoise", ["b"])
    watch = clock.stop("b")
    clock.pause()
    assert clock.items(watch) == items(denoise=3 + 4, total=7)
    assert clock.total == 7


def test_leaving_the_region_twice_books_nothing(timer):
    """Ctrl-C while a result was stored once counted the storing as work of the host."""
    clock = Clock(timer)
    timer.second = 3
    clock.pause()
    timer.second = 50
    clock.pause()
    assert clock.totals == {"host": 3}


def test_the_clock_is_read_only_after_the_device_has_settled(timer):
    clock = Clock(timer)
    assert timer.settled == 0
    clock.pause()
    assert timer.settled == 1


def test_ttft_ends_with_the_mark_after_which_the_first_token_was_final(timer):
    clock = Clock(timer)
    timer.second = 1
    clock.start("a")
    for label, at in (("tokenise", 2), ("prefill", 5), ("sampling", 6)):
        timer.second = at
        clock.mark(label, ["a"])
    clock.first_token("a")
    timer.second = 9
    clock.mark("denoise", ["a"])
    clock.first_token("a")  # only the first counts
    watch = clock.stop("a")
    clock.pause()
    assert clock.ttft(watch) == 5


def test_without_a_first_token_there_is_no_ttft(timer):
    clock = Clock(timer)
    clock.start("a")
    assert clock.ttft(clock.stop("a")) is None


def test_a_restart_forgets_what_was_before_the_timed_region(timer):
    clock = Clock(timer)
    timer.second = 40
    clock.mark("host", ())
    clock.restart()
    timer.second = 41
    clock.pause()
    assert clock.total == 1


def test_who_queued_before_being_taken_on_has_waited_that_long(timer):
    clock = Clock(timer)
    clock.start("a", queued_seconds=7)
    timer.second = 2
    clock.mark("denoise", ["a"])
    clock.first_token("a")
    watch = clock.stop("a")
    clock.pause()
    assert clock.items(watch) == items(waiting=7, denoise=2, total=9)
    assert clock.ttft(watch) == 9
    assert clock.total == 2  # the run's own time knows no queue: others were served meanwhile


def test_a_block_closes_with_the_mark_after_which_it_was_complete(timer):
    clock = Clock(timer)
    clock.start("a", queued_seconds=1)
    for label, at in (("prefill", 2), ("denoise", 5), ("sampling", 6), ("denoise", 9), ("sampling", 10)):
        timer.second = at
        clock.mark(label, ["a"])
        if label == "sampling":
            clock.block_closed("a")
    watch = clock.stop("a")
    clock.pause()
    assert clock.closes(watch) == (1 + 6, 1 + 10)


def test_what_came_to_nothing_was_waiting(timer):
    clock = Clock(timer)
    clock.start("a")
    timer.second = 4
    clock.mark("denoise", ["a"])
    clock.first_token("a")
    clock.block_closed("a")
    clock.start_over("a")
    timer.second = 6
    clock.mark("denoise", ["a"])
    clock.first_token("a")
    watch = clock.stop("a")
    clock.pause()
    assert clock.items(watch) == items(waiting=4, denoise=2, total=6)
    assert (clock.ttft(watch), clock.closes(watch)) == (6, ())
    assert clock.totals == {"denoise": 6, "host": 0}  # the run did work all the time


def test_idle_time_is_the_runs_and_nobodys(timer, monkeypatch):
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        timer.second += seconds

    monkeypatch.setattr("dllm_audit.measure.clock.time.sleep", sleep)
    clock = Clock(timer, host=lambda: timer.second)
    timer.second = 2
    clock.idle_until(5)
    clock.idle_until(4)  # that is past: nothing to wait for
    clock.start("a")
    timer.second = 6
    clock.mark("denoise", ["a"])
    watch = clock.stop("a")
    clock.pause()
    assert slept == [3]
    assert clock.items(watch)["total"] == 1
    assert clock.totals == {"host": 2, "idle": 3, "denoise": 1}
    assert clock.total == 6


def test_elapsed_is_the_hosts_view_of_the_timed_region(timer):
    clock = Clock(timer, host=lambda: timer.second)
    timer.second = 10
    clock.restart()
    timer.second = 12
    clock.pause()
    timer.second = 50  # a result is being stored
    clock.resume()
    timer.second = 51
    assert clock.elapsed() == 3


# -- the clock of real decoding --


@pytest.fixture(scope="module")
def model():
    return load_model(find_model(str(TINY_LLADA)), "cpu", "float32")


BACKENDS = ("uncached", "prefixcache", "dualcache")


def decode(model, name, requests, concurrency=1, keep=lambda result: None, **settings):
    results = {}

    def take(result):
        results[result.id] = result
        keep(result)

    backend = load_plugins().backends[name]
    log = backend.open(model, {"gen_length": 16, "block_length": 8, **settings}).generate(requests, take, concurrency)
    return results, log


def requests(*lengths):
    return [Request(str(n), prompt_ids=(5,) * length) for n, length in enumerate(lengths)]


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("concurrency", [1, 2, 3])
def test_items_add_up_to_the_total_and_the_totals_to_the_makespan(model, name, concurrency, monkeypatch):
    """With a clock whose every look takes one second, nothing can hide between two marks."""
    monkeypatch.setattr(session_module, "timer_for", lambda device: Ticking())
    results, log = decode(model, name, requests(9, 3, 30, 12), concurrency)
    for result in results.values():
        assert set(result.seconds) == {*TIME_ITEMS, "total"}
        assert sum(result.seconds[item] for item in TIME_ITEMS) == result.seconds["total"]
        assert 0 < result.ttft_seconds < result.seconds["total"] <= result.elapsed_seconds
        # a forward is one interval, and so is its sampling
        assert result.seconds["denoise"] == result.forwards["denoise"]
        assert result.seconds["refresh"] == result.forwards.get("refresh", 0)
        assert result.seconds["sampling"] == result.nfe
        assert result.seconds["tokenise"] == result.seconds["detokenise"] == 1
    assert any(r.seconds["waiting"] for r in results.values()) == (concurrency > 1)
    assert sum(log.seconds.values()) == log.makespan_seconds == max(r.elapsed_seconds for r in results.values()) + 1
    assert {s.kind: s.seconds for s in log.shapes if s.count == 1} == {s.kind: 1 for s in log.shapes if s.count == 1}
    assert sum(s.seconds for s in log.shapes) == log.batch_forwards
    if concurrency == 1:
        between = log.makespan_seconds - sum(r.seconds["total"] for r in results.values())
        assert between <= 3 * len(results) + 2  # taking the next request, and nothing else


def test_ttft_counts_the_sampling_that_made_the_token_final(model, monkeypatch):
    """It once ended with the forward, before the token was chosen."""
    monkeypatch.setattr(session_module, "timer_for", lambda device: Ticking())
    result = decode(model, "uncached", requests(4), gen_length=1)[0]["0"]
    seconds = result.seconds
    assert result.forwards == {"denoise": 1}
    assert result.ttft_seconds == seconds["total"] - seconds["detokenise"] - 1  # one look to close the step


def test_an_empty_answer_has_no_ttft(model):
    free = decode(model, "uncached", requests(4))[0]["0"]
    result = decode(model, "uncached", requests(4), eos_token_id=free.output_ids[0])[0]["0"]
    assert (result.answered_tokens, result.ttft_seconds) == (0, None)


def test_storing_results_is_in_no_ones_time(model):
    slow = 0.05
    results, log = decode(model, "uncached", requests(4, 4, 4), 2, keep=lambda result: time.sleep(slow), gen_length=2)
    assert log.store_seconds >= 3 * slow
    assert log.makespan_seconds < slow
    assert all(result.seconds["total"] < slow for result in results.values())


@pytest.mark.parametrize("name", BACKENDS)
def test_the_items_of_a_request_explain_an_outside_wall_clock_within_2_percent(model, name):
    """Other work may disturb the machine between the two clocks, so the best of several tries counts."""
    session = load_plugins().backends[name].open(model, {"gen_length": 64, "block_length": 8})
    session.warm_up(requests(64)[:1], 1)
    gaps = []
    for _ in range(8):
        arrived = []
        began = time.perf_counter()
        session.generate(requests(64), lambda result, arrived=arrived: arrived.append((result, time.perf_counter())))
        result, ended = arrived[0]
        gaps.append(1 - sum(result.seconds[item] for item in TIME_ITEMS) / (ended - began))
        if gaps[-1] < 0.02:
            break
    assert 0 <= min(gaps) < 0.02, gaps


def test_the_host_timer_reads_seconds():
    timer = HostTimer()
    start = timer.now()
    time.sleep(0.01)
    assert 0.01 <= timer.seconds(start, timer.now()) < 5
