"""What ran between two states of a run, by the shape of its forwards."""

from __future__ import annotations

from dllm_audit.decode.tally import ShapeTally, join_logs, shapes_since, shapes_so_far
from dllm_audit.measure.clock import Clock
from dllm_audit.records import EngineLog, ForwardShape


class Ticks:
    def now(self) -> int:
        return 0

    def settle(self) -> None:
        return None

    def seconds(self, start: int, stop: int) -> float:
        return float(stop - start)


def test_intervals_are_read_once_and_forgotten():
    tally = ShapeTally(intervals=[(0, 2), (5, 6)], decided=4, keys=40, in_flight=3)
    clock = Clock(Ticks())
    first = shapes_so_far({("denoise", 8, 1): tally}, clock)
    assert first == (ForwardShape("denoise", 8, 1, 2, 3.0, 4, 40, 3),)
    assert tally.intervals == []
    tally.intervals.append((6, 10))
    tally.decided, tally.keys, tally.in_flight = 6, 60, 4
    assert shapes_so_far({("denoise", 8, 1): tally}, clock) == (ForwardShape("denoise", 8, 1, 3, 7.0, 6, 60, 4),)


def test_the_difference_has_only_what_ran_since_with_the_groups_of_a_shape_added_up():
    before = [ForwardShape("denoise", 8, 1, 2, 3.0, 4, 40, 3), ForwardShape("prefill", 5, 1, 1, 1.0, 1, 5, 1)]
    now = [*before, ForwardShape("denoise", 8, 1, 1, 0.5, 2, 20, 1), ForwardShape("refresh", 9, 1, 1, 2.0, 8, 9, 1)]
    assert shapes_since(now, before) == [
        ForwardShape("denoise", 8, 1, 1, 0.5, 2, 20, 1),
        ForwardShape("refresh", 9, 1, 1, 2.0, 8, 9, 1),
    ]
    assert shapes_since(now, now) == []


def test_rows_in_flight_that_an_engine_does_not_record_stay_unknown():
    assert shapes_since([ForwardShape("denoise", 8, 1, 2, 3.0, 4, 40)], []) == [
        ForwardShape("denoise", 8, 1, 2, 3.0, 4, 40, None)
    ]


def test_logs_of_what_ran_one_after_the_other_are_one_log_with_each_shape_once():
    first = EngineLog((ForwardShape("denoise", 8, 1, 2, 3.0, 4, 40, 3),), 4.0, 0.5, {"host": 1.0}, rows=1, notes=("a",))
    second = EngineLog(
        (ForwardShape("denoise", 8, 1, 1, 1.0, 2, 20, 1), ForwardShape("prefill", 5, 1, 1, 1.0, 1, 5, 1)),
        2.5, 0.25, {"host": 0.5, "idle": 0.1}, rows=1, compiled_graphs=1, notes=("a", "b"),
    )  # fmt: skip
    joined = join_logs([first, second])
    assert joined.shapes == (
        ForwardShape("denoise", 8, 1, 3, 4.0, 6, 60, 4),
        ForwardShape("prefill", 5, 1, 1, 1.0, 1, 5, 1),
    )
    assert (joined.makespan_seconds, joined.store_seconds, joined.rows, joined.compiled_graphs) == (6.5, 0.75, 1, 1)
    assert joined.seconds == {"host": 1.5, "idle": 0.1}
    assert joined.notes == ("a", "b")
