"""lm-eval's own filters and metrics over stored answers; what was not answered is left out, not marked wrong."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dllm_audit.errors import TaskError
from dllm_audit.evaluate.loading import load_tasks
from dllm_audit.evaluate.prompts import build_prompts
from dllm_audit.evaluate.scoring import _unanswerable, score


@pytest.fixture(scope="module")
def gsm():
    (task,) = load_tasks("gsm_mini").values()
    return task, build_prompts(task, None, False, 4)


def right(task, doc_id: int) -> str:
    return task.doc_to_target(list(task.test_docs())[doc_id])


def values(scores, metric: str) -> dict[str, tuple[float, int]]:
    return {m["filter"]: (m["value"], m["documents"]) for m in scores.metrics if m["metric"] == metric}


def test_right_and_wrong_answers_are_told_apart_per_document_and_on_average(gsm):
    task, prompts = gsm
    texts = {0: right(task, 0), 1: right(task, 1), 2: "no number", 3: "#### 123456"}
    scores = score("gsm_mini", task, prompts, texts)
    strict = {a["doc_id"]: a["value"] for a in scores.answers if a["filter"] == "strict-match"}
    assert strict == {0: 1.0, 1: 1.0, 2: 0.0, 3: 0.0}
    assert set(values(scores, "exact_match").values()) == {(0.5, 4)}
    assert all(metric["stderr"] > 0 for metric in scores.metrics)
    assert {answer["response"] for answer in scores.answers if answer["doc_id"] == 3} == {"123456"}
    assert {answer["response"] for answer in scores.answers if answer["doc_id"] == 2} == {"[invalid]"}


def test_a_document_without_an_answer_is_left_out_and_the_others_keep_their_own(gsm):
    task, prompts = gsm
    scores = score("gsm_mini", task, prompts, {1: right(task, 1), 3: "#### 123456"})
    assert {a["doc_id"]: a["value"] for a in scores.answers if a["filter"] == "strict-match"} == {1: 1.0, 3: 0.0}
    assert set(values(scores, "exact_match").values()) == {(0.5, 2)}


def test_no_answer_at_all_gives_no_score(gsm):
    task, prompts = gsm
    scores = score("gsm_mini", task, prompts, {})
    assert (scores.answers, scores.metrics) == ([], [])


def test_scoring_twice_gives_the_same(gsm):
    task, prompts = gsm
    texts = {n: right(task, n) for n in range(4)}
    assert score("gsm_mini", task, prompts, texts) == score("gsm_mini", task, prompts, texts)


def test_an_answer_of_the_model_may_be_empty(gsm):
    task, prompts = gsm
    scores = score("gsm_mini", task, prompts, dict.fromkeys(range(4), ""))
    assert set(values(scores, "exact_match").values()) == {(0.0, 4)}


def test_a_metric_that_breaks_is_a_sentence_that_keeps_the_answers(gsm, monkeypatch):
    import lm_eval.evaluator

    def broken(*args, **options):
        raise ZeroDivisionError("a metric")

    monkeypatch.setattr(lm_eval.evaluator, "evaluate", broken)
    task, prompts = gsm
    with pytest.raises(TaskError) as error:
        score("gsm_mini", task, prompts, {0: "x"})
    assert str(error.value) == (
        "The answers of task 'gsm_mini' could not be scored: ZeroDivisionError: a metric. "
        "They are stored; --resume scores them again."
    )


def test_a_right_answer_that_is_none_of_the_choices_is_said():
    """lm-eval scores it as 0 without a word."""
    choices = {0: ["a", "b"], 1: ["a", "b"], 2: ["c", "d"]}
    targets = {0: 1, 1: "banana", 2: 2}
    samples = [{"doc_id": n, "doc": n, "target": targets[n]} for n in choices for _ in range(2)]
    task = SimpleNamespace(OUTPUT_TYPE="multiple_choice", doc_to_choice=choices.__getitem__)
    assert _unanswerable(task, samples) == [
        "Of 3 documents, 2 can only be answered wrong: the right answer is none of the choices (document 1 is the first). "
        "Check doc_to_target and doc_to_choice of the task."
    ]
    assert _unanswerable(task, samples[:2]) == []
    assert _unanswerable(SimpleNamespace(OUTPUT_TYPE="generate_until"), samples) == []
