"""The books: count times separately measured cost, plus the host's items, against the wall time."""

from __future__ import annotations

import pytest

from dllm_audit.measure.books import close_books, own_clock_books
from dllm_audit.records import EngineLog, ForwardShape


def shape(kind: str, width: int, count: int, seconds: float, rows: int = 1) -> ForwardShape:
    return ForwardShape(kind, width, rows, count, seconds, decided=count, keys=count * width, in_flight=count * rows)


def log(*shapes: ForwardShape, **seconds: float) -> EngineLog:
    return EngineLog(shapes, makespan_seconds=1.0, store_seconds=0.0, seconds=seconds)


def test_the_parts_are_count_times_cost_and_the_host_items():
    ran = log(
        shape("denoise", 32, 10, 0.9),
        shape("refresh", 64, 2, 0.5),
        denoise=0.9, refresh=0.5, tokenise=0.01, sampling=0.02, host=0.03, detokenise=0.04, waiting=5.0,
    )  # fmt: skip
    books = close_books(ran, 2.0, lambda shapes, seconds: [0.1 if s.kind == "denoise" else 0.3 for s in shapes])
    assert books is not None
    assert [(e.kind, e.count, e.in_run, e.predicted) for e in books.entries] == [
        ("denoise", 10, 0.9, pytest.approx(1.0)),
        ("refresh", 2, 0.5, pytest.approx(0.6)),
    ]
    assert books.host_seconds == pytest.approx(0.1)
    assert books.predicted_seconds == pytest.approx(1.7)
    assert books.discrepancy == pytest.approx(-0.15)


def test_the_cost_of_a_width_between_two_measured_ones_is_interpolated():
    ran = log(*(shape("refresh", width, 1, 0.1) for width in (10, 20, 30, 40, 50, 60)))
    asked = []

    def costs(shapes, seconds):
        asked.extend(s.width for s in shapes)
        return [s.width / 100 for s in shapes]

    books = close_books(ran, 1.0, costs)
    assert books is not None
    assert asked == [10, 20, 30, 50, 60]
    assert books.entries[0].predicted == pytest.approx((10 + 20 + 30 + 40 + 50 + 60) / 100)


def test_shapes_of_other_rows_are_measured_apart():
    ran = log(shape("denoise", 8, 4, 0.4), shape("denoise", 8, 2, 0.6, rows=3))
    books = close_books(ran, 1.0, lambda shapes, seconds: [float(s.rows) for s in shapes])
    assert books is not None
    assert books.entries[0].predicted == pytest.approx(4 * 1 + 2 * 3)


@pytest.mark.parametrize(("wall", "seconds"), [(100.0, 25.0), (1.0, 2.0)])
def test_measuring_the_parts_may_take_a_quarter_of_the_run_but_two_seconds_at_least(wall, seconds):
    asked = []

    def costs(shapes, budget):
        asked.append(budget)
        return [1.0 for _ in shapes]

    close_books(log(shape("denoise", 8, 4, 0.4)), wall, costs)
    assert asked == [seconds]


def test_a_backend_that_cannot_measure_its_forwards_has_no_books():
    assert close_books(log(shape("denoise", 8, 4, 0.4)), 1.0, lambda shapes, seconds: None) is None


def test_nothing_that_ran_has_no_books():
    assert close_books(log(), 1.0, lambda shapes, seconds: []) is None


@pytest.mark.parametrize(("engine", "wall"), [(10.0, 10.4), (0.08, 0.1), (2.0, 2.4)])
def test_a_foreign_engine_may_take_a_moment_to_make_itself_ready(engine, wall):
    assert own_clock_books(engine, wall) is None


@pytest.mark.parametrize(("engine", "wall"), [(0.001, 1.0), (9.0, 10.0), (0.05, 0.1), (2.0, 1.0)])
def test_a_foreign_engine_whose_clock_is_not_ours_has_books_that_do_not_close(engine, wall):
    """A plugin that divided its times by a thousand once was a thousand times as fast."""
    books = own_clock_books(engine, wall)
    assert books is not None
    assert books.discrepancy == pytest.approx(engine / wall - 1)
