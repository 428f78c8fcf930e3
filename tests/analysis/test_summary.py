"""The three runs of the fixture: six documents each, numbers that a person can follow."""

import pytest

from dllm_audit.analysis.summary import books_note, summarise
from dllm_audit.records import Failure


def test_throughput_is_the_sum_of_answered_tokens_over_the_makespan(stored):
    # 6 answers of 4 tokens in 3.0 s.
    figure = summarise(stored, "ar-1").throughput
    assert (figure.value, figure.unit, figure.status) == (pytest.approx(8.0), "tokens/s", "measured")
    assert figure.basis == "6 requests of this run"
    assert figure.low == pytest.approx(8.0)
    assert figure.high == pytest.approx(8.0)


def test_prompt_tokens_are_in_no_throughput(stored):
    summary = summarise(stored, "ar-1")
    assert (summary.prompt_tokens, summary.answered_tokens) == (60, 24)
    assert summary.throughput.value == pytest.approx(24 / 3.0)


def test_tau_divides_by_the_forwards_that_may_commit(stored):
    summary = summarise(stored, "dual-1")
    assert summary.committed_per_forward.value == 48 / 24
    assert summary.committed_per_forward_spread.p50 == 2.0
    assert summary.tokens_per_forward.value == 24 / 24
    assert summary.positions_per_forward.value == 252 / 24


def test_tau_of_autoregressive_decoding_is_one(stored):
    assert summarise(stored, "ar-1").committed_per_forward.value == 1.0


def test_the_items_of_the_clock_add_up_to_the_whole(stored):
    shares = summarise(stored, "dual-1").seconds
    assert sum(share.share for share in shares) == pytest.approx(1.0)
    assert {share.item: round(share.share, 3) for share in shares if share.seconds} == {
        "tokenise": 0.04,
        "denoise": 0.48,
        "refresh": 0.24,
        "sampling": 0.12,
        "host": 0.08,
        "detokenise": 0.04,
    }


def test_accuracy_has_a_wilson_interval_for_every_filter(stored):
    metrics = summarise(stored, "dual-1").metrics
    assert [metric.label for metric in metrics] == ["exact_match, flexible-extract", "exact_match, strict-match"]
    figure = metrics[0].figure
    assert figure.value == pytest.approx(4 / 6)
    assert (round(figure.low, 3), round(figure.high, 3)) == (0.300, 0.903)  # Wilson, 4 of 6


def test_the_strict_filter_decides_whatever_its_value(stored):
    assert summarise(stored, "dual-1").primary_metric.filter == "strict-match"


def test_an_answer_that_no_filter_found_is_counted_as_extraction_failure(stored):
    assert summarise(stored, "dual-1").metrics[1].extraction_failures.value == pytest.approx(1 / 6)


def test_truncation_is_the_share_of_answers_that_the_window_cut(stored):
    assert summarise(stored, "dual-1").truncation_rate.value == pytest.approx(1 / 6)


def test_guaranteed_commits_are_a_share_for_diffusion_and_do_not_apply_to_ar(stored):
    assert summarise(stored, "dual-1").guaranteed_share.value == pytest.approx(36 / 48)
    assert summarise(stored, "ar-1").guaranteed_share.reason == "not applicable: one token at a time"


def test_correct_answers_per_second_are_derived(stored):
    figure = summarise(stored, "dual-1").correct_per_second
    assert (figure.value, figure.status) == (pytest.approx(4 / 1.5), "derived")


def test_correct_answers_per_second_have_the_interval_of_the_requests(stored):
    # 4 of 6 right, 0.25 s each: the rate of right answers over equal times, by Student's t of 5 degrees of freedom.
    figure = summarise(stored, "dual-1").correct_per_second
    half = 2.5706 * (4 / 6 * 2 / 6 / 5) ** 0.5 / 0.25
    assert (figure.low, figure.high) == pytest.approx((max(0.0, 4 / 1.5 - half), 4 / 1.5 + half), rel=0.05)
    assert figure.basis == "6 requests of this run"


@pytest.mark.parametrize(("right", "said"), [(0, "no answer is correct"), (1, "every answer is correct")])
def test_where_all_answers_are_alike_correct_answers_per_second_have_no_interval(empty_store, build, right, said):
    build("add_run", empty_store, build("run_row", "r"), [build("generation")] * 6, [right] * 6, makespan=3.0)
    figure = summarise(empty_store, "r").correct_per_second
    assert (figure.value, figure.low, figure.high) == (pytest.approx(2.0 * right), None, None)
    assert figure.reason == f"interval unknown: {said}, and of others that may not be so"


def test_correct_answers_per_second_of_requests_that_share_forwards_say_why_they_have_no_interval(empty_store, build):
    row = build("run_row", "r", concurrency=4)
    build("add_run", empty_store, row, [build("generation")] * 6, [1, 0] * 3, makespan=1.5)
    figure = summarise(empty_store, "r").correct_per_second
    assert (figure.value, figure.has_interval) == (pytest.approx(2.0), False)
    assert figure.reason.startswith("interval unknown: 4 requests share forwards")


def test_a_run_is_found_by_the_beginning_of_its_id(stored):
    assert summarise(stored, "du").run_id == "dual-1"


def test_a_failed_request_is_neither_a_wrong_answer_nor_a_time(empty_store, build):
    results = [build("generation") for _ in range(5)] + [Failure("5", "RequestError", "The prompt is too long.")]
    build("add_run", empty_store, build("run_row", "r"), results, [1, 1, 1, 1, 1, 0], makespan=3.0)
    summary = summarise(empty_store, "r")
    assert (summary.answered, summary.failed, summary.stored) == (5, 1, 6)
    assert summary.metrics[0].figure.value == 1.0
    assert summary.metrics[0].documents == 5
    assert summary.throughput.value == pytest.approx(20 / 2.5)
    assert "1 of 6 requests failed." in summary.notes[0]
    assert summary.failures[0].message == "The prompt is too long."


def test_the_interval_is_unknown_when_requests_share_forwards(empty_store, build):
    results = [build("generation") for _ in range(6)]
    build("add_run", empty_store, build("run_row", "r", concurrency=4), results, makespan=1.0)
    summary = summarise(empty_store, "r")
    assert summary.throughput.value == pytest.approx(24.0)
    assert not summary.throughput.has_interval
    assert summary.throughput.reason == (
        "interval unknown: 4 requests share forwards, so they are not independent; it needs at least 5 repeats"
    )
    assert summary.latency[50.0].reason == "interval unknown: requests share forwards or wait for one another"


def test_the_interval_is_unknown_for_fewer_than_five_requests(empty_store, build):
    build("add_run", empty_store, build("run_row", "r"), [build("generation")] * 3, makespan=1.5)
    assert summarise(empty_store, "r").throughput.reason == "interval unknown: 3 of at least 5 requests"


def test_batch_tax_is_the_share_of_row_slots_without_work(empty_store, build):
    # Two rows in flight at 8 forwards: both took part in 2 of them, one alone in 6. 10 of 16 slots were of use.
    build(
        "add_run", empty_store, build("run_row", "r", concurrency=2), [build("generation")] * 2, makespan=1.0,
        shapes=[build("shape", "denoise", 1, 2, 2, 0.2), build("shape", "refresh", 9, 1, 6, 0.6, 2)],
    )  # fmt: skip
    assert summarise(empty_store, "r").batch_tax.value == pytest.approx(6 / 16)


def test_a_run_that_was_killed_is_as_long_as_its_last_stored_answer(empty_store, build):
    row = build("run_row", "r")
    build("add_run", empty_store, row, [build("generation")] * 6, makespan=3.0)
    empty_store._connection.execute("UPDATE runs SET status = 'running', makespan_seconds = NULL")
    summary = summarise(empty_store, "r")
    assert summary.throughput.value == pytest.approx(8.0)
    assert summary.throughput.status == "derived"
    assert "The run is running: 6 of 6 requests are stored." in summary.notes


def test_books_that_do_not_close_are_said(empty_store, build):
    row = build("run_row", "r")
    row = {**row, "manifest": {**row["manifest"], "books": {"discrepancy": -0.2}}}
    build("add_run", empty_store, row, [build("generation")] * 6, makespan=3.0)
    summary = summarise(empty_store, "r")
    assert summary.books_close is False
    assert summary.notes[0] == (
        "The books do not close within 5 %: separately measured forwards and host items add up to 80 % of the wall time. Do not "
        "rely on these times: the machine changed meanwhile (other work, another clock) or something is not measured; speeds "
        "are compared with that much allowance. Next: end what dllm-audit doctor warns of, then run again with --repeats 5."
    )


def test_books_that_do_not_close_on_a_loaded_machine_name_the_load(empty_store, build):
    row = build("run_row", "r")
    load = {"load_average_1min_before": 3.6, "cores_usable": 2, "threads": 1}
    row = {**row, "manifest": {**row["manifest"], "books": {"discrepancy": -0.2}, "environment": load}}
    build("add_run", empty_store, row, [build("generation")] * 6, makespan=3.0)
    assert (
        "Do not rely on these times: other work was running, since the load average was 3.6 on 2 cores (1 thread of torch among it);"
    ) in summarise(empty_store, "r").notes[0]


def test_runs_whose_books_do_not_close_share_one_note():
    runs = [{"manifest": {"books": {"discrepancy": off}}} for off in (-0.2, 0.1)]
    assert "add up to 80 % (run 1) and 110 % (run 2) of the wall time" in books_note(runs, ["run 1", "run 2"])
    assert books_note([*runs, {"manifest": {"books": {"discrepancy": 0.01}}}]) == ""


def test_a_manifest_without_anything_is_tolerated(empty_store, build):
    build("add_run", empty_store, build("run_row", "r", manifest={}), [build("generation")], makespan=0.5)
    summary = summarise(empty_store, "r")
    assert summary.is_embedded is False
    assert summary.notes == ()


def test_a_run_without_an_answer_has_unknown_figures_with_reasons(empty_store, build):
    build("add_run", empty_store, build("run_row", "r"), [Failure("0", "RequestError", "No.")])
    summary = summarise(empty_store, "r")
    assert summary.throughput.value is None
    assert summary.throughput.reason == "no request was answered"
    assert summary.committed_per_forward.value is None
    assert all(convention.rate.value is None for convention in summary.conventions)


def test_a_graded_score_has_an_interval_of_its_mean(empty_store, build):
    build("add_run", empty_store, build("run_row", "r"), [build("generation")] * 6, [0.5] * 5 + [1.0], makespan=3.0)
    metric = summarise(empty_store, "r").metrics[0]
    assert metric.binary is False
    assert metric.figure.value == pytest.approx(3.5 / 6)
    assert metric.figure.low < metric.figure.value < metric.figure.high


def test_ending_early_spares_the_forwards_that_the_rest_of_the_window_would_have_taken(stored):
    # Five of 64 positions decoded by six requests, one forward each.
    assert (summarise(stored, "ar-1").spared_forwards.value, summarise(stored, "ar-1").spared_forwards.status) == (
        354,
        "derived",
    )
    # Eight of 64 by six requests, at 24 forwards for 48 tokens.
    spared = summarise(stored, "dual-1").spared_forwards
    assert (spared.value, spared.status) == (6 * 56 * 24 / 48, "estimated")
