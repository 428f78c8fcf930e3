import pytest

from dllm_audit.analysis.pairing import Comparisons, compare
from dllm_audit.records import Failure


@pytest.fixture
def pair(empty_store, build):
    """Store an ar run and a dualcache run of so many documents, and compare the second with the first.

    control: the ar run is there once more as A/A control, so many times as fast.
    """

    def make(ours, theirs, *, candidate=None, baseline=None, row=None, control=None, text="#### 5"):
        n = len(ours)
        row = row or {}
        build(
            "add_run", empty_store, build("run_row", "base"),
            [build("generation", **(baseline or {})) for _ in range(n)], theirs, makespan=0.5 * n,
        )  # fmt: skip
        build(
            "add_run", empty_store, build("diffusion_row", "cand", **row),
            [build("diffusion_generation", text=text, **(candidate or {})) for _ in range(n)], ours, makespan=0.25 * n,
        )  # fmt: skip
        if control:
            build(
                "add_run", empty_store, build("run_row", "again", role="control"), [build("generation")] * n, theirs,
                makespan=0.5 * n / control,
            )  # fmt: skip
        return compare(empty_store, "cand", "base")

    return make


def test_speed_is_the_ratio_of_sums_over_the_paired_documents(pair):
    found = pair([1] * 6, [1] * 6)
    assert found.documents == 6
    assert found.speed.value == pytest.approx(2.0)
    assert found.speed_verdict == "faster"
    assert found.time.value == pytest.approx(2.0)


def test_a_margin_that_so_few_documents_cannot_decide_is_called_open_with_the_number_needed(pair):
    found = pair([1] * 6, [1] * 6, text="#### 6")
    assert found.quality.verdict == "open"
    assert found.quality.needed == 1546
    assert found.quality.sentence == (
        "Open: 6 paired documents cannot decide a margin of 2 points; about 1,546 would be needed "
        "(10 % assumed discordance, power 80 %). So many decide 32.1 points."
    )
    assert found.faster_and_not_worse is False
    assert found.verdict == "Faster (2.00x, 2.00 to 2.00) and of a quality that is not decided."


def test_faster_and_not_worse_needs_both_decided(pair):
    found = pair([1] * 150, [1] * 150)
    assert found.quality.verdict == "not worse"
    assert found.faster_and_not_worse is True
    assert found.verdict == "Faster (2.00x, 2.00 to 2.00) and not worse."


def test_worse_is_decided_by_the_discordant_documents(pair):
    found = pair([0] * 20 + [1] * 20, [1] * 40)
    quality = found.quality
    assert (quality.counts.only_candidate, quality.counts.only_baseline) == (0, 20)
    assert quality.difference.value == -0.5
    assert quality.p_value == pytest.approx(2 * 0.5**20)
    assert quality.verdict == "worse"
    assert quality.sentence == "Worse: a loss of more than 2 points is shown (one-sided 5 %)."
    assert found.verdict == "Faster (2.00x, 2.00 to 2.00) and worse by 50.0 points."


def test_nobody_is_not_worse_than_a_baseline_that_fails(pair):
    found = pair([0] * 150, [0] * 150)
    assert found.quality.verdict == "not worse"
    assert found.baseline_fails is True
    assert found.faster_and_not_worse is False
    assert "(the baseline itself answers 0 % correctly, which is no standard)" in found.verdict


def test_answers_of_another_length_are_flagged_beyond_ten_percent(pair):
    found = pair([1] * 150, [1] * 150, text="#### 5.")  # 7 against 6 characters
    assert found.length.value == pytest.approx(7 / 6)
    assert found.length_parity is False
    assert found.faster_and_not_worse is False
    assert found.verdict.endswith("; the answers are 17 % longer, so speeds compare badly.")


def test_a_nuisance_makes_a_difference_not_attributable(pair):
    found = pair([1] * 6, [1] * 6, row={"concurrency": 4})
    assert found.attributable is False
    assert found.verdict.startswith("Not attributable, because concurrency differs too: ")
    assert not found.speed.has_interval
    assert found.speed_verdict == "unknown"


def test_a_difference_within_what_the_machine_makes_up_is_open(pair):
    found = pair([1] * 6, [1] * 6, control=2.5)
    assert found.control == pytest.approx(2.5)
    assert found.speed_verdict == "open"


def test_the_control_beside_its_twin_is_held_against_nothing(pair, empty_store):
    pair([1] * 6, [1] * 6, control=2.5)
    found = Comparisons(empty_store).compare("again", "base")
    assert (found.control, found.speed.value) == (None, pytest.approx(2.5))


def test_time_for_the_same_documents_has_an_interval_where_requests_ran_one_at_a_time(pair):
    time = pair([1] * 6, [1] * 6).time
    assert (time.low, time.high) == (pytest.approx(2.0), pytest.approx(2.0))
    assert time.basis == "6 paired documents, one run each"


def test_requests_in_flight_together_have_no_time_of_their_own(pair):
    time = pair([1] * 6, [1] * 6, row={"concurrency": 4}).time
    assert not time.has_interval
    assert time.reason.startswith("interval unknown: requests share forwards or wait for one another")


def test_fewer_than_five_documents_have_no_interval(pair):
    found = pair([1] * 3, [1] * 3)
    assert found.speed.reason == "interval unknown: 3 of at least 5 documents"
    assert found.speed_verdict == "unknown"


def test_an_empty_answer_joins_its_neighbour_and_is_not_dropped(empty_store, build):
    build("add_run", empty_store, build("run_row", "base"), [build("generation")] * 6, makespan=3.0)
    answers = [build("diffusion_generation", answered=0 if n == 2 else 4) for n in range(6)]
    build("add_run", empty_store, build("diffusion_row", "cand"), answers, makespan=1.5)
    found = compare(empty_store, "cand", "base")
    assert found.speed.value == pytest.approx((20 / 1.5) / (24 / 3.0))
    assert found.speed.has_interval


def test_a_candidate_that_never_answers_has_no_speed(pair):
    found = pair([0] * 6, [1] * 6, candidate={"answered": 0})
    assert found.speed.value is None
    assert found.verdict == "Not comparable: one side answered no tokens, or took no time."


def test_runs_of_different_tasks_are_not_compared(pair):
    found = pair([1] * 6, [1] * 6, row={"task": "lists_sort"})
    assert found.documents == 0
    assert found.verdict == "Not comparable: the two runs did different tasks."


def test_a_metric_that_nobody_scored_leaves_the_quality_unknown(pair):
    found = pair([1] * 6, [], text="#### 6")
    assert found.quality is None
    assert found.verdict == "Faster (2.00x, 2.00 to 2.00) and of unknown quality."


def test_a_graded_score_is_compared_by_its_paired_differences(pair):
    found = pair([0.5] * 9 + [0.6], [0.5] * 10)
    assert found.quality.counts is None
    assert found.quality.difference.value == pytest.approx(0.01)
    assert found.quality.verdict == "not worse"


def test_a_graded_score_is_worse_by_the_bound_that_decides(pair):
    found = pair([0.5] * 9 + [0.4], [0.9] * 10)
    assert found.quality.sentence == "Worse: a loss of more than 0.02 is shown (one-sided 5 %, Student's t)."


def test_a_document_that_failed_on_one_side_is_in_no_quality(empty_store, build):
    failed = Failure("5", "RequestError", "The prompt is too long.")
    build("add_run", empty_store, build("run_row", "base"), [build("generation")] * 6, [1] * 6, makespan=3.0)
    answers = [*([build("diffusion_generation")] * 5), failed]
    build("add_run", empty_store, build("diffusion_row", "cand"), answers, [1] * 5 + [0], makespan=1.5)
    found = compare(empty_store, "cand", "base")
    assert (found.documents, found.unpaired) == (5, 1)
    assert (found.quality.documents, found.quality.difference.value) == (5, 0.0)


def test_a_metric_of_which_less_is_better_is_not_judged_by_points(empty_store, build):
    for row in (build("run_row", "base"), build("diffusion_row", "cand")):
        build(
            "add_run", empty_store, row, [build("generation")] * 6, [9.5] * 6, makespan=3.0, metric="perplexity",
            filters=("none",),
        )  # fmt: skip
    quality = compare(empty_store, "cand", "base").quality
    assert quality.verdict == "unknown"
    assert quality.sentence == ("Not compared: less is better for this metric, and a margin in points means nothing.")
