"""What spoils a verdict: times that do not add up, runs that were not finished, a damaged results file."""

import pytest

from dllm_audit.analysis.pairing import compare
from dllm_audit.analysis.summary import summarise


@pytest.fixture
def doubtful(empty_store, build):
    """Compare 150 documents of dualcache with ar, whose parts are `off` from its wall time."""

    def make(off=None, status="complete", text="#### 5", n=150):
        row = build("run_row", "base")
        manifest = {**row["manifest"], "books": {"discrepancy": off}}
        base = {**row, "manifest": manifest, "planned_requests": 2 * n}
        build("add_run", empty_store, base, [build("generation")] * n, [1] * n, makespan=0.5 * n, status=status)
        answers = [build("diffusion_generation", text=text)] * n
        build("add_run", empty_store, build("diffusion_row", "cand"), answers, [1] * n, makespan=0.25 * n)
        return compare(empty_store, "cand", "base")

    return make


@pytest.mark.parametrize("off", [None, 0.0, 0.05, -0.05, float("nan"), "much"])
def test_books_that_close_change_nothing(doubtful, off):
    found = doubtful(off)
    assert found.verdict == "Faster (2.00x, 2.00 to 2.00) and not worse."
    assert found.caveats == ()


@pytest.mark.parametrize(("off", "factor"), [(0.2, 1.2), (-0.2, 1.25)])
def test_books_that_are_a_little_off_widen_the_interval(doubtful, off, factor):
    found = doubtful(off)
    assert (found.speed.low, found.speed.high) == pytest.approx((2 / factor, 2 * factor))
    assert found.speed_verdict == "faster"
    assert found.caveats[0].endswith(f"The interval of the speed is widened by {factor:.2f}x for that.")


def test_no_speed_is_concluded_from_times_that_are_far_off(doubtful):
    found = doubtful(-0.947)
    assert found.speed_verdict == "unknown"
    assert found.faster_and_not_worse is False
    assert found.speed.reason == "the times of ar are not reliable: its parts add up to 5.3 % of its wall time"
    assert found.verdict == f"Of unknown speed ({found.speed.reason}) and not worse."
    assert not found.characters.has_interval


@pytest.mark.parametrize("status", ["running", "interrupted", "failed"])
def test_a_run_that_was_not_finished_is_named_and_decides_nothing(doubtful, status):
    found = doubtful(status=status)
    assert found.faster_and_not_worse is False
    assert found.verdict.endswith("; one side is unfinished (ar, 150 of 300 requests).")
    assert found.caveats == ("One side is unfinished (ar, 150 of 300 requests): what is missing is in no figure.",)


def test_answers_that_are_the_same_are_called_identical(doubtful):
    assert doubtful(n=6).verdict == "Faster (2.00x, 2.00 to 2.00) and with identical answers."


def test_answers_that_differ_are_not(doubtful):
    assert doubtful(n=6, text="#### 6").identical is False


@pytest.mark.parametrize("value", ["NULL", "'NaN'::DOUBLE", "'Infinity'::DOUBLE", "-1.0"])
@pytest.mark.parametrize("column", ["total_seconds", "denoise_seconds", "ttft_seconds", "elapsed_seconds"])
def test_a_time_that_cannot_be_true_leaves_its_request_out(empty_store, build, column, value):
    build("add_run", empty_store, build("run_row", "base"), [build("generation")] * 7, [1] * 6 + [0], makespan=3.5)
    build(
        "add_run",
        empty_store,
        build("diffusion_row", "cand"),
        [build("diffusion_generation")] * 7,
        [1] * 7,
        makespan=1.75,
    )
    empty_store._connection.execute(f"UPDATE requests SET {column} = {value} WHERE run_id = 'base' AND ordinal = 6")
    summary, found = summarise(empty_store, "base"), compare(empty_store, "cand", "base")
    if value == "NULL" and column != "total_seconds":
        assert summary.answered == 7  # not recorded, which is allowed
        return
    assert (summary.answered, summary.metrics[0].figure.value) == (6, 1.0)
    assert summary.notes[0].startswith("1 of 7 stored requests are in no figure, because a time or a count")
    assert (found.documents, found.unpaired, found.quality.documents) == (6, 1, 6)
    assert found.speed.has_interval


@pytest.mark.parametrize("value", ["'NaN'::DOUBLE", "-3.0"])
def test_a_makespan_that_cannot_be_true_is_replaced_by_the_last_answer(empty_store, build, value):
    build("add_run", empty_store, build("run_row", "r"), [build("generation")] * 6, makespan=3.0)
    empty_store._connection.execute(f"UPDATE runs SET makespan_seconds = {value}")
    figure = summarise(empty_store, "r").makespan_seconds
    assert figure.value == pytest.approx(3.0)
    assert figure.reason == "the stored time cannot be true; its time is that of the last answer stored"


@pytest.fixture
def resumed(empty_store, build):
    """Compare dualcache with ar, whose run was resumed in a sitting with the given facts."""

    def make(**sitting):
        row = build("run_row", "base")
        base = {**row, "manifest": {**row["manifest"], "resumed_with": [sitting]}}
        build("add_run", empty_store, base, [build("generation")] * 6, [1] * 6, makespan=3.0)
        empty_store.resume_run("base")
        empty_store.end_run("base", "complete")
        build(
            "add_run",
            empty_store,
            build("diffusion_row", "cand"),
            [build("diffusion_generation")] * 6,
            [1] * 6,
            makespan=1.5,
        )
        return compare(empty_store, "cand", "base"), summarise(empty_store, "base").notes

    return make


def test_a_resumed_run_is_called_that_wherever_it_is_compared(resumed):
    found, notes = resumed()
    assert "ar was resumed: 2 sittings, whose times are added up." in found.caveats
    assert "The run was resumed: 2 sittings, whose times are added up." in notes
    assert found.manifests.nuisance == ()


def test_a_run_that_was_resumed_on_another_machine_can_be_attributed_to_nothing(resumed):
    found, notes = resumed(environment={"cpu": "Another CPU", "load_average_1min_before": 9.0})
    words = "They differ in environment.cpu, so its times are of no one machine and code."
    assert any(note.endswith(words) for note in notes)
    assert any(caveat.endswith(words) for caveat in found.caveats)
    assert [difference.name for difference in found.manifests.nuisance] == ["environment.cpu"]


def test_a_sitting_that_began_before_its_times_were_stationary_is_named(resumed):
    _, notes = resumed(warm_up={"stationary": False})
    assert "The times were not stationary when warm-up ended, so the first requests may be too slow." in notes


@pytest.mark.parametrize(
    "change", ["answered_tokens = committed_tokens + 1", "denoise_seconds = 2 * total_seconds", "total_seconds = 1e-9"]
)
def test_a_request_that_contradicts_itself_is_in_no_figure(empty_store, build, change):
    """An edited count once made a run two thousand times as fast."""
    build("add_run", empty_store, build("run_row", "base"), [build("generation")] * 6, [1] * 6, makespan=3.0)
    empty_store._connection.execute(f"UPDATE requests SET {change} WHERE ordinal = 5")
    summary = summarise(empty_store, "base")
    assert summary.answered == 5
    assert any("cannot be true (request 5): the results file is damaged there." in note for note in summary.notes)


def test_a_whole_time_that_ended_before_its_last_answer_is_not_believed(empty_store, build):
    build("add_run", empty_store, build("run_row", "base"), [build("generation")] * 6, [1] * 6, makespan=3.0)
    empty_store._connection.execute("UPDATE runs SET makespan_seconds = 0.0001")
    summary = summarise(empty_store, "base")
    assert summary.makespan_seconds.value == pytest.approx(3.0)
    assert (
        summary.makespan_seconds.reason == "the stored time cannot be true; its time is that of the last answer stored"
    )


@pytest.mark.parametrize("change", ["rows = 0", "in_flight = 0", "count = 0"])
def test_forwards_that_cannot_be_true_have_no_batch_tax(empty_store, build, change):
    build("add_run", empty_store, build("run_row", "base"), [build("generation")] * 6, [1] * 6, makespan=3.0)
    empty_store._connection.execute(f"UPDATE forward_shapes SET {change}")
    assert summarise(empty_store, "base").batch_tax.value is None
