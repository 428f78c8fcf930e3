"""Tasks that have given answers scored: what they ask, in which order, and the metrics of stored log-likelihoods."""

from __future__ import annotations

import json
import math

import pytest
import yaml

from dllm_audit.errors import TaskError
from dllm_audit.evaluate.datasets import import_data
from dllm_audit.evaluate.loading import load_tasks
from dllm_audit.evaluate.prompts import asks_for_likelihoods, build_questions
from dllm_audit.evaluate.scoring import score

DOCUMENTS = (
    {"question": "2 + 2?", "choices": {"text": ["4", "five", "six"], "label": ["A", "B", "C"]}, "answerKey": "A"},
    {"question": "1 + 2?", "choices": {"text": ["four", "3"], "label": ["A", "B"]}, "answerKey": "B"},
    {"question": "2 + 2?", "choices": {"text": ["4", "five", "six"], "label": ["A", "B", "C"]}, "answerKey": "A"},
)
ARC = {
    "output_type": "multiple_choice",
    "doc_to_text": "Question: {{question}}\nAnswer:",
    "doc_to_target": "{{choices.label.index(answerKey)}}",
    "doc_to_choice": "{{choices.text}}",
    "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
}
LAST_WORD = {
    "output_type": "loglikelihood",
    "doc_to_text": "{{question}}",
    "doc_to_target": " {{choices.text[0]}}",
    "metric_list": [{"metric": "perplexity"}, {"metric": "acc"}],
}
TEXTS = {
    "output_type": "loglikelihood_rolling",
    "doc_to_text": "",
    "doc_to_target": "{{question}}",
    "metric_list": [{"metric": "bits_per_byte"}],
}


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("DLLM_AUDIT_DATA", str(tmp_path / "data"))
    return tmp_path


@pytest.fixture
def load(data):
    """load(fields of a task) -> the task, from a YAML file of its own with three documents beside it."""

    def write(fields, documents=DOCUMENTS):
        (data / "docs.jsonl").write_text("".join(json.dumps(d) + "\n" for d in documents))
        files = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": "docs.jsonl"}}, "test_split": "test"}
        (data / "own.yaml").write_text(yaml.safe_dump({"task": "own", **files, **fields}))
        (task,) = load_tasks(str(data / "own.yaml")).values()
        return task

    return write


def metrics(scores):
    return {metric["metric"]: metric["value"] for metric in scores.metrics}


# -- what is asked --


def test_every_answer_of_a_document_is_a_question_of_its_own_in_the_tasks_order(load):
    task = load(ARC)
    assert asks_for_likelihoods(task)
    asked = build_questions(task, None, False, None)
    assert [(q.ordinal, q.doc_id, q.choice, q.continuation) for q in asked] == [
        (0, 0, 0, " 4"),
        (1, 0, 1, " five"),
        (2, 0, 2, " six"),
        (3, 1, 0, " four"),
        (4, 1, 1, " 3"),
        (5, 2, 0, " 4"),
        (6, 2, 1, " five"),
        (7, 2, 2, " six"),
    ]
    assert asked[3].prompt == "Question: 1 + 2?\nAnswer:"
    question = asked[1].question()
    assert (question.id, question.prompt, question.answer) == ("1", asked[1].prompt, " five")
    assert (question.rolling, question.key) == (False, asked[1].key)


def test_an_address_is_the_content_of_a_question_and_tells_repetitions_apart(load):
    asked = build_questions(load(ARC), None, False, None)
    assert len({q.key for q in asked}) == len(asked)
    assert [q.key for q in build_questions(load(ARC), None, False, 1)] == [q.key for q in asked[:3]]
    # Whatever stands before it, a question keeps its address, and with it its random draws.
    alone = build_questions(load(ARC, DOCUMENTS[1:2]), None, False, None)
    assert [q.key for q in alone] == [q.key for q in asked[3:5]]


def test_a_last_word_is_no_choice_and_a_text_has_no_prompt(load):
    words = build_questions(load(LAST_WORD), None, False, None)
    assert [(q.prompt, q.continuation, q.choice, q.rolling) for q in words][:2] == [
        ("2 + 2?", " 4", None, False),
        ("1 + 2?", " four", None, False),
    ]
    texts = build_questions(load(TEXTS), None, False, 2)
    assert [(q.prompt, q.continuation, q.choice, q.rolling) for q in texts] == [
        ("", "2 + 2?", None, True),
        ("", "1 + 2?", None, True),
    ]


def test_answers_that_are_scored_without_their_prompt_too_are_no_choice(load):
    """The metric acc_mutual_info wants log p(answer | prompt) - log p(answer)."""
    task = load({**ARC, "metric_list": [{"metric": "acc"}, {"metric": "acc_mutual_info"}]}, DOCUMENTS[:1])
    asked = build_questions(task, None, False, None)
    assert [(q.choice, bool(q.prompt)) for q in asked] == [(0, True), (1, True), (2, True), *[(None, False)] * 3]
    values = (-1.0, -2.0, -3.0, -1.0, -9.0, -3.0)
    found = metrics(score("own", task, asked, {n: (value, False) for n, value in enumerate(values)}))
    assert (found["acc"], found["acc_mutual_info"]) == (1.0, 0.0)


def test_a_task_that_asks_for_text_and_for_log_likelihoods_is_refused(load):
    task = load(ARC)
    inner = task.construct_requests

    def mixed(*args, **kwargs):
        requests = inner(*args, **kwargs)
        requests[0].request_type = "generate_until"
        return requests

    task.construct_requests = mixed
    with pytest.raises(TaskError) as error:
        build_questions(task, None, False, None)
    assert str(error.value) == (
        "Task 'own' asks for text and for log-likelihoods (generate_until, loglikelihood), and a run does one of them. "
        "Use a task that asks for one thing."
    )


def test_an_imported_data_set_makes_arc_easy_work_without_network(data):
    path = data / "arc.jsonl"
    path.write_text("".join(json.dumps({"id": str(n), **d}) + "\n" for n, d in enumerate(DOCUMENTS)))
    import_data("arc_easy", path)
    (task,) = load_tasks("arc_easy").values()
    asked = build_questions(task, None, False, None)
    assert len(asked) == 8
    assert (asked[4].prompt, asked[4].continuation) == ("Question: 1 + 2?\nAnswer:", " 3")
    found = metrics(score("arc_easy", task, asked, {n: (-float(n % 3), False) for n in range(8)}))
    assert set(found) == {"acc", "acc_norm"}


# -- what becomes of the values --


def test_the_likeliest_answer_is_chosen_and_the_likeliest_per_character(load):
    """Document 0: -3.0 wins over -3.5 and -9; per character -3.0/1 loses to -3.5/4. Document 1: wrong, and right per character."""
    task = load(ARC, DOCUMENTS[:2])
    values = [-3.0, -3.5, -9.0, -1.0, -1.1]
    scores = score("own", task, build_questions(task, None, False, None), {n: (v, False) for n, v in enumerate(values)})
    by_document = {(a["metric"], a["doc_id"]): a["value"] for a in scores.answers}
    assert by_document == {("acc", 0): 1.0, ("acc", 1): 0.0, ("acc_norm", 0): 0.0, ("acc_norm", 1): 0.0}
    assert -3.5 / 4 > -3.0
    assert -1.0 / 4 > -1.1
    assert metrics(scores) == {"acc": 0.5, "acc_norm": 0.0}


def test_a_document_of_which_one_answer_was_not_scored_is_left_out(load):
    task = load(ARC)
    values = {n: (-float(n), False) for n in range(8) if n != 4}
    scores = score("own", task, build_questions(task, None, False, None), values)
    assert sorted({a["doc_id"] for a in scores.answers}) == [0, 2]
    assert {m["documents"] for m in scores.metrics} == {2}


def test_the_last_word_is_right_where_it_is_greedy_and_its_perplexity_is_of_the_mean(load, capsys):
    task = load(LAST_WORD)
    values = {0: (-1.0, True), 1: (-2.0, False), 2: (-3.0, True)}
    asked = build_questions(task, None, False, None)
    capsys.readouterr()
    scores = score("own", task, asked, values)
    assert metrics(scores) == {"perplexity": pytest.approx(math.exp(2.0)), "acc": pytest.approx(2 / 3)}
    assert all(m["stderr"] > 0 for m in scores.metrics)
    # lm-eval says that it draws standard errors; that is no part of our output.
    assert capsys.readouterr() == ("", "")


def test_bits_per_byte_of_texts_are_a_ratio_of_sums(load):
    """12 nats over 18 bytes, in bits."""
    task = load(TEXTS)
    scores = score("own", task, build_questions(task, None, False, None), {0: -2.0, 1: -4.0, 2: -6.0})
    assert metrics(scores) == {"bits_per_byte": pytest.approx(12 / 18 / math.log(2))}
    assert {a["value"] for a in scores.answers} == {None}


PERPLEXITIES = {
    **TEXTS,
    "metric_list": [{"metric": "word_perplexity"}, {"metric": "byte_perplexity"}, {"metric": "bits_per_byte"}],
}


def test_a_perplexity_too_large_for_a_number_has_no_value_and_the_other_metrics_keep_theirs(load):
    """900 nats over the one word of each text; over its 60 bytes they are 15 nats each."""
    task = load(PERPLEXITIES, [{"question": "\N{GRINNING FACE}" * 15}] * 2)
    scores = score("own", task, build_questions(task, None, False, None), {0: -900.0, 1: -900.0})
    assert metrics(scores) == {
        "word_perplexity": None,
        "byte_perplexity": pytest.approx(math.exp(15)),
        "bits_per_byte": pytest.approx(15 / math.log(2)),
    }
    assert scores.notes == [
        "Metric 'word_perplexity' has no value: it is too large for a floating-point number. "
        "Judge by another metric of the task."
    ]


def test_a_standard_error_that_overflows_leaves_its_metric_the_value(load):
    """The mean of both is 600 nats, and a draw may hold the second text twice."""
    task = load({**LAST_WORD, "metric_list": [{"metric": "perplexity"}]}, DOCUMENTS[:2])
    scores = score("own", task, build_questions(task, None, False, None), {0: (-300.0, True), 1: (-900.0, True)})
    assert [(m["value"], m["stderr"]) for m in scores.metrics] == [(pytest.approx(math.exp(600)), None)]
    assert scores.notes == []


@pytest.mark.parametrize(
    ("over_all", "why"),
    [
        (lambda values: math.nan, "it came out as nan"),
        (lambda values: 1 / 0, "computing it failed (ZeroDivisionError: division by zero)"),
    ],
)
def test_a_metric_of_the_tasks_own_that_has_no_finite_value_says_so(load, over_all, why):
    task = load(ARC, DOCUMENTS[:2])
    task.aggregation()["acc_norm"] = over_all
    values = dict.fromkeys(range(5), (-1.0, False))
    scores = score("own", task, build_questions(task, None, False, None), values)
    assert metrics(scores) == {"acc": 0.5, "acc_norm": None}
    assert scores.notes == [f"Metric 'acc_norm' has no value: {why}. Judge by another metric of the task."]
