import pytest
from honest_claims import HONEST, REPLICATED, SCORE, SWEEP, claim_of

from dllm_audit.claims.questions import Part, Status, ask, disclosure_score


def answer(claim, label):
    return next(a for a in ask(claim) if a.label == label)


@pytest.mark.parametrize("name", HONEST)
def test_there_are_always_four_answers_with_a_reason_and_their_fields(name):
    answers = ask(claim_of(HONEST[name]))
    assert [a.label for a in answers] == ["concurrency", "baseline", "quality", "time"]
    assert all(a.question.endswith("?") and a.reason.endswith(".") and a.fields for a in answers)


def test_a_claim_that_states_everything_scores_one():
    score = disclosure_score(ask(claim_of(SWEEP)))
    assert (score.share, score.judged_fields, score.unknown_fields) == (1.0, 11, 0)


@pytest.mark.parametrize("gap", ["not stated", "unreadable", "not recorded", "not applicable"])
def test_the_four_non_answers_stay_four_different_answers(gap):
    result = answer(claim_of(SWEEP, concurrency=gap), "concurrency")
    assert (result.status, result.reason) == (gap, f"Concurrency {gap}.")
    assert result.parts == (Part("concurrency", Status(gap)),)


def test_a_concurrency_in_words_is_half_an_answer():
    words = {"qualifier": "words", "wording": "small batches"}
    result = answer(claim_of(SWEEP, concurrency=words), "concurrency")
    assert (result.status, result.reason) == ("partly", "Only in words: 'small batches'.")


def test_a_rate_without_a_comparison_is_not_asked_for_its_baseline():
    result = answer(claim_of(REPLICATED), "baseline")
    assert (result.status, result.reason) == ("not applicable", "The claim makes no comparison.")


def test_a_baseline_on_another_gpu_is_an_answer_since_the_source_says_so():
    result = answer(claim_of(SWEEP, baseline__same_gpu="no"), "baseline")
    assert result.status == "answered"
    assert result.reason == "Model AR 7B; value 1200; same GPU no; same engine yes."


def test_a_baseline_whose_engine_is_silent_is_partly_answered():
    result = answer(claim_of(SWEEP, baseline__same_engine="not stated"), "baseline")
    assert result.status == "partly"
    assert result.reason == "Model AR 7B; value 1200; same GPU yes; same engine not stated."


def test_a_score_of_another_run_is_not_the_quality_at_that_speed():
    result = answer(claim_of(SWEEP, quality__same_runs="no"), "quality")
    assert result.status == "partly"
    assert Part("quality.at_speed", Status.NOT_STATED) in result.parts
    assert result.reason == "The quality given belongs to other settings or tasks than the speed."


def test_a_score_that_nobody_could_read_is_not_called_silence_because_it_belongs_elsewhere():
    result = answer(claim_of(SWEEP, quality__same_runs="no", quality__at_speed="unreadable"), "quality")
    assert Part("quality.at_speed", Status.UNREADABLE) in result.parts


def test_no_measured_quality_is_silence():
    result = answer(claim_of(SWEEP, quality="none"), "quality")
    assert (result.status, result.reason) == ("not stated", "No quality was measured at this speed.")


def test_a_claim_to_which_quality_does_not_apply_is_not_asked_for_its_threshold():
    result = answer(claim_of(SWEEP, quality="not applicable"), "quality")
    assert (result.status, result.reason) == (
        "not applicable",
        "The question does not arise for this kind of claim.",
    )


def test_with_a_fixed_schedule_the_steps_are_asked_for_instead_of_the_threshold():
    assert answer(claim_of(REPLICATED), "quality").fields[-1] == "decode.steps"
    assert answer(claim_of(SWEEP), "quality").fields[-1] == "decode.threshold"


def test_saying_that_prefill_is_left_out_answers_the_question_of_time():
    excluded = {"prefill": "no", "commit_pass": "yes", "fixed_overhead": "partly"}
    result = answer(claim_of(SWEEP, time_includes=excluded), "time")
    assert (result.status, result.reason) == (
        "answered",
        "Prefill no; commit pass yes; fixed overhead partly.",
    )


def test_time_and_concurrency_do_not_arise_for_a_score():
    score = claim_of(SCORE, concurrency="not stated", time_includes="not stated")
    assert answer(score, "time").status == "not applicable"
    assert answer(score, "concurrency").status == "not applicable"


def test_half_silent_counts_half_of_that_question():
    # Of four questions one has one field of three: (1 + 1 + 1 + 1/3) / 4.
    partly = {"prefill": "yes", "commit_pass": "not stated", "fixed_overhead": "not stated"}
    assert disclosure_score(ask(claim_of(SWEEP, time_includes=partly))).share == pytest.approx((3 + 1 / 3) / 4)


def test_an_unreadable_source_is_never_punished_as_if_it_were_silent():
    silent = disclosure_score(ask(claim_of(SWEEP, time_includes="not stated")))
    unreadable = disclosure_score(ask(claim_of(SWEEP, time_includes="unreadable")))
    assert silent.share == pytest.approx(0.75)
    assert (unreadable.share, unreadable.judged_fields, unreadable.unknown_fields) == (1.0, 8, 3)


def test_when_nothing_could_be_judged_there_is_no_score():
    unknown = claim_of(
        REPLICATED,
        concurrency="unreadable",
        quality="unreadable",
        decode="unreadable",
        time_includes="unreadable",
    )
    assert disclosure_score(ask(unknown)).share is None


def test_silence_mixed_with_the_unreadable_is_not_called_silence():
    mixed = {"prefill": "not stated", "commit_pass": "unreadable", "fixed_overhead": "not applicable"}
    assert answer(claim_of(SWEEP, time_includes=mixed), "time").status == "unreadable"
