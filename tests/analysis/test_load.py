"""What was in flight, and when text reached a client: hand-computed from a few rows."""

from __future__ import annotations

from typing import Any

import pytest

from dllm_audit.analysis.figures import Figure
from dllm_audit.analysis.load import load_figures, streaming
from dllm_audit.analysis.rows import speed_alone, stands_alone
from dllm_audit.records import ForwardShape

CLOSED = {"concurrency": 4, "load": "closed", "arrival_rate": None, "kind": "diffusion"}
OPEN = {**CLOSED, "load": "open", "arrival_rate": 2.0}
TEN = Figure(10.0, "s", "measured")


def row(sitting: int = 1, **columns: Any) -> dict[str, Any]:
    return {"sitting": sitting, "queue_seconds": 0.0, **columns}


def sitting(number: int = 1, **columns: Any) -> dict[str, Any]:
    base = {"rows": 4, "ramp_seconds": 0.5, "drain_seconds": 2.0, "idle_seconds": 0.0, "compiled_graphs": 0}
    return {"sitting": number, **base, **columns}


def shape(rows: int, count: int, seconds: float, kind: str = "denoise") -> ForwardShape:
    return ForwardShape(kind, 8, rows, count, seconds, 0, 0, count * rows)


def test_the_batch_that_really_ran_is_a_histogram_over_forwards():
    shapes = [shape(4, 6, 3.0), shape(1, 2, 0.5), shape(4, 2, 1.5, "refresh")]
    load = load_figures(CLOSED, [row()], shapes, [sitting()], TEN)
    assert [(b.rows, b.forwards, b.share, b.time_share) for b in load.batches] == [(1, 2, 0.2, 0.1), (4, 8, 0.8, 0.9)]
    assert load.mean_rows.value == (1 * 2 + 4 * 8) / 10
    assert load.histogram == (("1", 0.2, 0.1), ("4", 0.8, 0.9))
    assert (load.words, load.rows, load.notes) == ("closed loop", 4, ())


def test_where_rows_vary_much_neighbouring_numbers_are_shown_together():
    load = load_figures(CLOSED, [row()], [shape(n, 1, 1.0) for n in range(1, 21)], [sitting()], TEN)
    # Twenty numbers in at most eight bars: three each, and the last two.
    assert [name for name, _, _ in load.histogram] == ["1-3", "4-6", "7-9", "10-12", "13-15", "16-18", "19-20"]
    assert [share for _, share, _ in load.histogram] == pytest.approx([0.15] * 6 + [0.1])


def test_ramp_drain_and_idle_are_shares_of_the_whole_time():
    load = load_figures(CLOSED, [row()], [], [sitting(idle_seconds=1.0)], TEN)
    assert (load.ramp.value, load.drain.value, load.idle.value) == (0.05, 0.2, 0.1)


def test_sittings_are_added_up_and_one_whose_log_is_missing_makes_them_unknown():
    done = [row(), row(sitting=2)]
    assert load_figures(CLOSED, done, [], [sitting(), sitting(2)], TEN).drain.value == 0.4
    assert load_figures(CLOSED, done, [], [sitting()], TEN).drain == Figure(
        None, "share", "derived", reason="not recorded when this was run"
    )
    assert load_figures(CLOSED, [row()], [], [], TEN).idle.value is None


def test_rows_that_were_never_all_in_flight_have_no_ramp():
    load = load_figures(OPEN, [row()], [], [sitting(ramp_seconds=None, drain_seconds=None, idle_seconds=4.0)], TEN)
    assert load.ramp.reason == "not applicable: 4 requests were never in flight together"
    assert load.idle.value == 0.4
    assert load.notes == (
        "Requests arrived by chance, 2 a second on average: where the engine keeps up, throughput says how fast they came, "
        "not how fast it decodes.",
    )


def test_a_compilation_inside_the_timed_region_is_flagged():
    load = load_figures(CLOSED, [row()], [], [sitting(compiled_graphs=2)], TEN)
    assert load.notes == (
        "torch compiled 2 graphs inside the timed region, so some requests waited for a compiler: "
        "warm-up did not meet every shape.",
    )


def test_the_queue_has_percentiles_without_an_interval_since_requests_wait_for_one_another():
    load = load_figures({**OPEN, "concurrency": 1}, [row(queue_seconds=float(n)) for n in range(1, 11)], [], [], TEN)
    assert load.queue[50.0].value == 5.0
    assert load.queue[50.0].reason == "interval unknown: requests share forwards or wait for one another"


def test_a_block_takes_what_a_request_took_since_a_row_took_it_on_divided_by_its_blocks():
    done = [
        row(delivered_seconds=2.0, block_seconds=[2.0, 3.0, 6.0]),  # 2 s a block
        row(delivered_seconds=7.0, block_seconds=[7.0], queue_seconds=3.0),  # 4 s a block, the queue left out
    ]
    found = streaming(CLOSED, done, TEN)
    assert found.blocks == 4
    assert found.mean_block_latency.value == (6.0 + 4.0) / 4
    assert (found.block_latency[50.0].value, found.block_latency[99.0].value) == (2.0, 4.0)
    assert found.blocks_per_second.value == 0.4
    # What a client waits for counts from the arrival.
    assert found.delivered[99.0].value == 7.0


def test_an_autoregressive_run_delivers_tokens_and_has_no_blocks():
    found = streaming({**CLOSED, "kind": "autoregressive"}, [row(delivered_seconds=1.0, block_seconds=[])], TEN)
    assert (found.blocks, found.delivered[50.0].value, found.blocks_per_second.value) == (0, 1.0, None)
    assert found.blocks_per_second.reason == "not applicable: an autoregressive decoder delivers tokens"


def test_a_run_of_before_blocks_were_recorded_says_so():
    found = streaming(CLOSED, [row(delivered_seconds=None, block_seconds=None)], TEN)
    assert found.mean_block_latency.reason == "not recorded when this was run"
    assert found.delivered[50.0].reason == "no delivery of an answer was measured"


def test_requests_stand_alone_only_one_at_a_time_in_a_closed_loop():
    assert stands_alone({"concurrency": 1})
    assert stands_alone({"concurrency": 1, "load": "closed"})
    assert not stands_alone({"concurrency": 2, "load": "closed"})
    assert not stands_alone({"concurrency": 1, "load": "offline"})


@pytest.mark.parametrize(
    ("prompts", "stop", "words"),
    [
        ({"num_fewshot": 0}, False, ""),
        (
            {"speed_alone": {"prompt_tokens": 128, "prompts": "text"}},
            False,
            "fixed work: 128 prompt tokens of text, every output 64 positions long",
        ),
        ({"speed_alone": {"prompt_tokens": 128, "prompts": "text"}}, True, "128 prompt tokens of text"),
        (
            {"speed_alone": {"prompt_tokens": 128, "prompts": "random ids"}},
            True,
            "fixed work: 128 prompt tokens of random ids",
        ),
    ],
)
def test_work_of_a_fixed_size_is_called_that(prompts, stop, words):
    run = {"manifest": {"prompts": prompts}, "settings": {"gen_length": 64, "stop_at_eos": stop}}
    assert speed_alone(run) == words
