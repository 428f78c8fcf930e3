"""Runs that score given answers: requests per second instead of tokens, and which choices are Monte Carlo noise."""

from __future__ import annotations

import json
from math import hypot, sqrt

import pytest

from dllm_audit.analysis.facts import comparison_facts, run_facts
from dllm_audit.analysis.labels import label
from dllm_audit.analysis.likelihoods import likelihood_notes, likelihoods_of_rows
from dllm_audit.analysis.pairing import compare
from dllm_audit.analysis.repeats import group_repeats
from dllm_audit.analysis.summary import summarise


def row(doc: int, choice: int | None, value: float, error: float = 0.0, text: str = " yes", **fields):
    """A stored request as far as log-likelihoods go; without an error it is exact."""
    base = {"doc_id": doc, "choice": choice, "loglikelihood": value, "standard_error": error, "continuation": text}
    return {**base, "samples": 128 if error else 3, "is_exact": not error, **fields}


DOCUMENTS = [
    [(-1.0, 0.1), (-2.0, 0.1)],
    [(-1.0, 0.1), (-1.2, 0.1)],
    [(-3.0, 0.0), (-2.9, 0.0)],
    *[[(-1.0, 0.0), (-5.0, 0.0)]] * 3,
]


# -- which choices are chance --


def test_a_choice_is_undecided_within_two_standard_errors_of_the_difference_and_only_where_there_is_an_error():
    """Errors of 0.3 and 0.4 make 0.5 of the difference, so 1.0 is the edge; exact values decide whatever their distance."""
    assert hypot(0.3, 0.4) == 0.5

    def share(*rows):
        return likelihoods_of_rows(rows, ["acc"]).undecided["acc"].value

    assert share(row(0, 0, -2.0, 0.3), row(0, 1, -3.0, 0.4)) == 1.0
    assert share(row(0, 0, -2.0, 0.3), row(0, 1, -3.01, 0.4)) == 0.0
    assert share(row(0, 0, -2.0), row(0, 1, -2.0001)) == 0.0
    assert share(row(0, 0, -2.0), row(0, 1, -2.5, 0.3)) == 1.0


def test_any_answer_may_be_the_one_that_is_too_close_not_only_the_second_best():
    rows = [row(0, 0, -2.0, 0.1), row(0, 1, -2.5, 0.1), row(0, 2, -3.0, 0.6)]
    assert likelihoods_of_rows(rows, ["acc"]).undecided["acc"].value == 1.0
    assert likelihoods_of_rows(rows[:2], ["acc"]).undecided["acc"].value == 0.0


def test_the_choice_per_character_is_judged_per_character_without_the_space_before_the_answer():
    """-4 over 2 characters against -9 over 4 is -2 against -2.25; errors of 1 become 0.5 and 0.25."""
    rows = [row(0, 0, -4.0, 1.0, " no"), row(0, 1, -9.0, 1.0, " okay")]
    found = likelihoods_of_rows(rows, ["acc", "acc_norm"]).undecided
    assert 2 * sqrt(2) < 5
    assert found["acc"].value == 0.0
    assert found["acc_norm"].value == 1.0
    assert set(found) == {"acc", "acc_norm"}


def test_answers_without_a_choice_are_in_no_share_but_in_the_sum_and_its_error():
    rows = [row(0, None, -10.0, 3.0), row(1, None, -20.0, 4.0), row(2, None, -1.0)]
    found = likelihoods_of_rows(rows, ["acc", "perplexity"])
    assert found.undecided["acc"].value is None
    assert (found.exact, found.estimated, found.samples) == (1, 2, 256)
    assert found.standard_error.value == 3.5
    assert (found.total.value, found.total.status) == (-31.0, "estimated")
    assert (found.total.low, found.total.high) == pytest.approx((-31 - 1.96 * 5, -31 + 1.96 * 5))


def test_exact_values_alone_have_no_error():
    found = likelihoods_of_rows([row(0, 0, -1.0), row(0, 1, -2.0)], ["acc"])
    assert (found.estimated, found.standard_error.value, found.total.has_interval) == (0, None, False)
    assert likelihoods_of_rows([], ["acc"]).total.value is None


def test_a_reader_is_told_what_the_values_are_and_what_is_noise():
    rows = [row(0, 0, -2.0, 0.3), row(0, 1, -2.1, 0.4), row(1, 0, -2.0), row(1, 1, -2.1)]
    found = likelihoods_of_rows(rows, ["acc"])
    notes = likelihood_notes({"kind": "diffusion"}, found)
    assert notes[2:] == [
        "2 of 4 log-likelihoods are estimated, from 128 masked copies each on average, with a standard error of 0.35 nats "
        "on average; the others are exact.",
        "acc: in 50% of 2 documents another answer lies within two standard errors of the chosen one, so which was chosen "
        "there is Monte Carlo noise. More samples decide more: --samples N.",
    ]
    assert "lower bounds" in notes[1]
    assert len(likelihood_notes({"kind": "autoregressive"}, likelihoods_of_rows(rows[2:], ["acc"]))) == 1


# -- the figures of a run --


def test_a_run_that_scores_has_requests_per_second_and_no_tokens_anywhere(empty_store, build):
    """12 requests of a quarter of a second: 4 a second."""
    run_id = build("add_scored_run", empty_store, build("diffusion_row", "scored"), DOCUMENTS)
    summary = summarise(empty_store, run_id)
    assert summary.requests_per_second.value == pytest.approx(4.0)
    assert summary.pace is summary.requests_per_second
    assert summary.requests_per_second.basis == "6 documents of this run"
    assert summary.requests_per_second.low == pytest.approx(4.0)
    for figure in (
        summary.throughput, summary.characters_per_second, summary.tokens_per_forward, summary.committed_per_forward,
        summary.truncation_rate, summary.guaranteed_share, *summary.ttft.values(),
    ):  # fmt: skip
        assert figure.value is None
        assert figure.reason == "not applicable: given answers were scored, so no token was decoded"
    assert summary.conventions == ()
    assert summary.forwards == {"score": 4 * 129 + 8 * 4}
    assert {share.item: share.seconds for share in summary.seconds}["score"] == pytest.approx(12 * 0.2)


def test_the_quality_of_a_scored_run_has_wilsons_interval_and_the_share_of_undecided_choices(empty_store, build):
    run_id = build("add_scored_run", empty_store, build("diffusion_row", "scored"), DOCUMENTS)
    summary = summarise(empty_store, run_id)
    metric = summary.primary_metric
    assert (metric.name, metric.binary, metric.figure.value, metric.documents) == ("acc", True, pytest.approx(5 / 6), 6)
    assert 0.4 < metric.figure.low < 0.5
    assert summary.likelihoods.undecided["acc"].value == pytest.approx(1 / 6)
    assert any("Monte Carlo noise" in note for note in summary.notes)
    assert summary.correct_per_second.value == pytest.approx(5 / 3.0)
    facts = json.loads(json.dumps(run_facts(summary), default=str))
    assert facts["output_type"] == "multiple_choice"
    assert facts["figures"]["throughput"]["value"] is None
    assert facts["likelihoods"]["undecided"]["acc"]["value"] == pytest.approx(1 / 6)
    assert facts["likelihoods"]["estimated"] == 4


def test_a_label_says_how_it_was_estimated_and_nothing_of_decoding(empty_store, build):
    build("add_scored_run", empty_store, build("diffusion_row", "a"), DOCUMENTS)
    build("add_scored_run", empty_store, build("run_row", "b"), DOCUMENTS)
    assert [label(run) for run in empty_store.runs()] == ["dualcache, 128 samples", "ar"]
    exact = {**empty_store.run("a"), "settings": {"samples": 128, "exact": True}}
    assert label(exact) == "dualcache, exact"


def test_a_perplexity_is_what_the_task_made_of_it_and_no_mean_of_log_likelihoods(empty_store, build):
    run_id = build("add_scored_run", empty_store, build("run_row", "p"), DOCUMENTS, output_type="loglikelihood")
    answers = [
        {"task": "gsm_mini", "doc_id": n, "filter": "none", "metric": "perplexity", "value": -2.0 - n, "response": "", "target": ""}
        for n in range(6)
    ]  # fmt: skip
    metric = {
        "task": "gsm_mini",
        "metric": "perplexity",
        "filter": "none",
        "value": 90.0,
        "stderr": 10.0,
        "documents": 6,
    }
    empty_store.add_scores(run_id, answers, [metric])
    (found,) = summarise(empty_store, run_id).metrics
    assert (found.figure.value, found.documents) == (90.0, 6)
    assert (found.figure.low, found.figure.high) == pytest.approx((90 - 19.6, 90 + 19.6))


def test_a_value_that_is_not_finite_is_a_damaged_row(empty_store, build):
    run_id = build(
        "add_scored_run", empty_store, build("run_row", "nan"), [[(float("nan"), 0.0), (-2.0, 0.0)], *DOCUMENTS]
    )
    summary = summarise(empty_store, run_id)
    assert summary.answered == 13
    assert any("1 of 14 stored requests are in no figure" in note for note in summary.notes)


# -- two such runs --


def test_two_scored_runs_are_compared_by_requests_per_second_and_paired_by_document(empty_store, build):
    """The candidate takes 0.1 s a request, the baseline 0.25 s: 2.5x; it has one document less right."""
    ours = [*DOCUMENTS, [(-1.0, 0.1), (-0.9, 0.1)]]
    build("add_scored_run", empty_store, build("run_row", "ours"), ours, seconds=0.1)
    build("add_scored_run", empty_store, build("diffusion_row", "theirs"), [*DOCUMENTS, [(-1.0, 0.0), (-2.0, 0.0)]])
    found = compare(empty_store, "ours", "theirs")
    assert (found.documents, found.unpaired) == (7, 0)
    assert found.speed.value == pytest.approx(2.5)
    assert found.time.value == pytest.approx(2.5)
    assert found.speed_verdict == "faster"
    assert (found.length_parity, found.length.value, found.characters.value) == (True, None, None)
    assert found.identical is False
    assert found.quality.counts.only_baseline == 1
    assert found.quality.difference.value == pytest.approx(-1 / 7)
    assert "In 29% of its documents the choice of ar is Monte Carlo noise" in " ".join(found.caveats)
    facts = comparison_facts(found)
    assert (facts["speed_of"], facts["speed"]["value"]) == ("requests/s", pytest.approx(2.5))


def test_a_document_of_which_one_answer_failed_is_in_no_comparison(empty_store, build):
    build("add_scored_run", empty_store, build("run_row", "ours"), DOCUMENTS, failed=[3])
    build("add_scored_run", empty_store, build("diffusion_row", "theirs"), DOCUMENTS)
    found = compare(empty_store, "ours", "theirs")
    assert (found.documents, found.unpaired) == (5, 1)
    assert found.quality.documents == 5
    # The quarter of a second of the request that failed is borne by the other eleven.
    assert found.speed.value == pytest.approx(11 / 12)


def test_requests_that_share_forwards_have_no_interval(empty_store, build):
    for name, row in (("ours", "run_row"), ("theirs", "diffusion_row")):
        build("add_scored_run", empty_store, build(row, name, concurrency=4), DOCUMENTS)
    found = compare(empty_store, "ours", "theirs")
    assert found.speed.value == pytest.approx(1.0)
    assert found.speed_verdict == "unknown"


def test_repeats_of_a_scored_run_add_up_their_requests_and_never_their_tokens(empty_store, build):
    """5 repeats of 12 requests in 3 seconds each."""
    for n in range(5):
        build("add_scored_run", empty_store, build("run_row", f"r{n}", repeat=n), DOCUMENTS)
    (group,) = group_repeats([summarise(empty_store, f"r{n}") for n in range(5)])
    assert (group.pace.value, group.pace.unit, group.pace.basis) == (
        pytest.approx(4.0),
        "requests/s",
        "5 repeats of 6 documents",
    )
    assert group.throughput.value is None
    assert (group.slowest, group.fastest) == (pytest.approx(4.0), pytest.approx(4.0))
