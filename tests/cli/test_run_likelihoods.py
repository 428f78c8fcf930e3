"""`dllm-audit run` on tasks that have given answers scored: what it prints, stores, resumes and refuses."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from dllm_audit.cli.main import main
from dllm_audit.decode.questions import QuestionSession
from dllm_audit.records import TIME_ITEMS, EngineLog, ScoredAnswer
from dllm_audit.store.database import Store

#: (question, answers, place of the right one): three answers, then two.
DOCUMENTS = (
    ("Eva has 3 coins. She finds 4 more. How many coins does Eva have in the end?", ("7", "12", "one"), 0),
    ("Sam has 9 pens. He loses 4. How many pens does Sam have in the end?", ("4", "5"), 1),
    ("Mia has 2 cups. She finds 2 more. How many cups does Mia have in the end?", ("22", "4"), 1),
)
SMALL = ("--samples", "4", "--batch-size", "4")


@dataclass(frozen=True)
class Tasks:
    arc: str
    texts: str


@pytest.fixture
def tasks(tmp_path) -> Tasks:
    """YAML files of a multiple-choice task and of one that scores whole texts, as a person would have them."""
    rows = [
        {"question": q, "choices": {"text": list(texts), "label": list("ABC")[: len(texts)]}, "answerKey": "ABC"[right]}
        for q, texts, right in DOCUMENTS
    ]
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": "docs.jsonl"}}, "test_split": "test"}
    arc = {
        "task": "my_arc", "output_type": "multiple_choice", "doc_to_text": "Question: {{question}}\nAnswer:",
        "doc_to_target": "{{choices.label.index(answerKey)}}", "doc_to_choice": "{{choices.text}}",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    }  # fmt: skip
    texts = {
        "task": "my_texts", "output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{question}}",
        "metric_list": [{"metric": "bits_per_byte"}],
    }  # fmt: skip
    for task in (arc, texts):
        (tmp_path / f"{task['task']}.yaml").write_text(yaml.safe_dump({**data, **task}))
    return Tasks(str(tmp_path / "my_arc.yaml"), str(tmp_path / "my_texts.yaml"))


@pytest.fixture
def database(tmp_path) -> Path:
    return tmp_path / "results.duckdb"


@pytest.fixture
def call(capsys, database):
    """call(command, arguments) -> (exit status, stdout, stderr), with a results file of its own."""

    def run(command: str, *arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main([command, "--db", str(database), *arguments])
        captured = capsys.readouterr()
        return end.value.code, captured.out, captured.err

    return run


@pytest.fixture
def stub(monkeypatch):
    """stub(values, errors) lets every question in the task's order have these instead of a model's, an eighth of a second each."""

    def replace(values, errors=None):
        errors = errors or [0.0] * len(values)

        def score(self, questions, on_result, concurrency=1, on_shapes=None):
            items = dict.fromkeys(TIME_ITEMS, 0.0) | {"score": 0.125, "total": 0.125}
            for n, question in enumerate(questions, 1):
                value, error = values[int(question.id)], errors[int(question.id)]
                on_result(
                    ScoredAnswer(
                        question.id, 5, 1, value, error, 4, not error, False, {"score": 4}, 24, items, 0.125 * n
                    )
                )
            return EngineLog((), 0.125 * len(questions), 0.0, {})

        monkeypatch.setattr(QuestionSession, "score", score)
        monkeypatch.setattr(QuestionSession, "warm_up", lambda self, questions, concurrency: None)

    return replace


def requests_of(database: Path) -> list[dict]:
    with Store.open(database) as store:
        return [row for run in store.runs() for row in store.requests(run["run_id"])]


VALUES = (
    "ordinal",
    "doc_id",
    "choice",
    "continuation",
    "loglikelihood",
    "standard_error",
    "samples",
    "is_greedy",
    "request_key",
)


def values_of(database: Path) -> list[tuple]:
    return [tuple(row[name] for name in VALUES) for row in requests_of(database)]


# -- what it prints and stores --


def test_a_multiple_choice_task_runs_on_every_kind_of_model_and_what_it_says_is_what_is_stored(call, database, tasks):
    status, out, err = call("run", "--backend", "uncached,block,ar", "--task", tasks.arc, *SMALL, "--json")
    assert status == 0, err
    runs = json.loads(out)["runs"]
    assert [run["backend"] for run in runs] == ["uncached", "block", "ar"]
    with Store.open(database) as store:
        for run in runs:
            rows = store.requests(run["run_id"])
            assert (run["output_type"], run["requests"], run["failed"]) == ("multiple_choice", 7, 0)
            assert (run["answered_tokens"], run["committed_tokens"]) == (0, 0)
            assert run["tokens_per_second"] is None
            assert run["tokens_per_forward"] is None
            assert run["requests_per_second"] == pytest.approx(7 / run["makespan_seconds"])
            assert run["seconds"]["score"] > 0
            assert run["seconds"]["total"] == pytest.approx(sum(run["seconds"][item] for item in TIME_ITEMS))
            assert run["forwards"]["score"] == sum(row["score_forwards"] for row in rows)
            assert run["forwards"]["denoise"] == run["forwards"]["prefill"] == 0
            assert [row["continuation"] for row in rows] == [f" {text}" for _, texts, _ in DOCUMENTS for text in texts]
            likeliest = []
            for doc, (_, _, right) in enumerate(DOCUMENTS):
                values = [row["loglikelihood"] for row in rows if row["doc_id"] == doc]
                likeliest.append(values.index(max(values)) == right)
            assert run["metrics"]["acc,none"] == pytest.approx(sum(likeliest) / 3)
            assert store.run(run["run_id"])["status"] == "complete"
    uncached, block, ar = runs
    assert uncached["settings"] == {
        "samples": 4, "exact": False, "compat": None, "cfg_scale": 0.0, "batch_size": 4, "mask_token_id": None,
    }  # fmt: skip
    assert block["settings"].keys() == {"samples", "exact", "batch_size", "mask_token_id"}
    assert ar["settings"] == {}
    assert ar["forwards"]["score"] == 7
    assert ar["likelihoods"]["exact"] == 7


def test_accuracy_is_that_of_the_likeliest_answers_computed_by_hand(call, tasks, stub):
    """Document 0 right, 1 wrong but right per character (5 and 4 are one each), 2 right; 7 requests of an eighth of a second."""
    stub([-1.0, -2.0, -3.0, -1.0, -1.5, -9.0, -2.0], [0.0, 0.0, 0.0, 0.2, 0.2, 0.1, 0.1])
    status, out, _ = call("run", "--backend", "uncached", "--task", tasks.arc, "--json")
    (run,) = json.loads(out)["runs"]
    assert status == 0
    assert run["metrics"] == {"acc,none": pytest.approx(2 / 3), "acc_norm,none": pytest.approx(2 / 3)}
    assert run["requests_per_second"] == pytest.approx(8.0)
    # 0.5 apart with an error of 0.283 is within two; 7.0 with 0.141 is not.
    assert run["likelihoods"]["undecided"]["acc"]["value"] == pytest.approx(1 / 3)


def test_for_a_person_it_prints_requests_per_second_quality_with_its_interval_and_never_tokens(call, tasks, stub):
    stub([-1.0, -2.0, -3.0, -1.0, -1.5, -9.0, -2.0], [0.0, 0.0, 0.0, 0.2, 0.2, 0.1, 0.1])
    status, out, _ = call("run", "--backend", "uncached", "--task", tasks.arc)
    assert status == 0
    header, line = out.splitlines()
    assert header.split() == ["decoder", "model", "task", "scored", "quality", "requests/s", "undecided", "run"]
    assert line.startswith(
        "uncached, 128 samples  tiny-mdm  my_arc     7/7  acc 0.667 (0.208 to 0.939)        8.00        33%  "
    )
    _, runs, _ = call("runs")
    assert "tokens/s  requests/s  quality" in runs
    assert runs.splitlines()[1].split()[-3:] == ["-", "8.00", "0.667"]
    run_id = line.split()[-1]
    _, shown, _ = call("show", run_id, "--requests")
    assert "requests per second" in shown
    assert "tokens per second" not in shown
    assert "counted differently" not in shown
    assert "undecided choices (acc)" in shown
    assert "-1.5000  0.2000" in shown
    assert "another answer lies within two standard errors" in shown
    status, _, err = call("show", run_id, "--trace", "0")
    assert (status, "takes no steps that could be traced" in err) == (2, True)


def test_two_such_runs_are_compared_by_requests_per_second(call, tasks, stub):
    stub([-1.0, -2.0, -3.0, -1.0, -1.5, -9.0, -2.0])
    _, out, _ = call("run", "--backend", "uncached", "--baseline", "ar", "--task", tasks.arc, "--json")
    runs = json.loads(out)["runs"]
    assert [run["role"] for run in runs] == ["baseline", "candidate", "control"]
    status, said, _ = call("compare", runs[1]["run_id"], runs[0]["run_id"])
    assert status == 0
    assert "speed, requests/s" in said
    assert "tokens/s" not in said
    assert "3 documents in common" in said
    assert "acc: 0.667 against 0.667" in said


def test_whole_texts_are_scored_and_bounds_are_called_bounds(call, database, tasks):
    status, out, _ = call("run", "--backend", "uncached,ar", "--task", tasks.texts, "--limit", "2", *SMALL, "--json")
    assert status == 0
    diffusion, ar = json.loads(out)["runs"]
    rows = requests_of(database)
    for run, found in ((diffusion, rows[:2]), (ar, rows[2:])):
        size = sum(len(q) for q, _, _ in DOCUMENTS[:2])
        nats = -sum(row["loglikelihood"] for row in found)
        assert run["metrics"] == {"bits_per_byte,none": pytest.approx(nats / size / 0.693147, rel=1e-4)}
    assert {row["is_greedy"] for row in rows} == {None}
    assert [row["is_exact"] for row in rows] == [False, False, True, True]
    _, shown, _ = call("show", diffusion["run_id"])
    assert (
        "lower bounds (expectations over masked copies of the answer), so perplexities made of them are upper" in shown
    )
    assert "log-likelihoods added up" in shown


def test_show_says_where_the_time_of_scored_answers_went_and_how_the_books_close(call, tasks):
    status, out, _ = call("run", "--backend", "uncached", "--task", tasks.arc, *SMALL, "--json")
    assert status == 0
    run_id = json.loads(out)["runs"][0]["run_id"]
    _, facts, _ = call("show", run_id, "--json")
    off = json.loads(facts)["manifest"]["books"]["discrepancy"]
    _, shown, _ = call("show", run_id)
    assert f"separately measured parts against the wall time: {off * 100:+.1f} %" in shown
    where = shown.partition("Where the time goes")[2]
    assert where.index("  score ") < where.index("separately measured")


def test_a_dry_run_counts_every_answer_as_a_request(call, tasks):
    status, out, _ = call("run", "--backend", "uncached", "--task", tasks.arc, "--dry-run", "--json")
    assert status == 0
    assert json.loads(out)["requests"] == 7


# -- values --


def test_a_value_depends_on_the_request_alone(call, database, tasks):
    """Whatever is in flight with it, in which batches, and whatever other documents there are."""
    call("run", "--backend", "uncached", "--task", tasks.arc, *SMALL)
    call(
        "run", "--backend", "uncached", "--task", tasks.arc, "--samples", "4", "--batch-size", "2", "--concurrency", "3"
    )
    rows = requests_of(database)
    assert len(rows) == 14
    for alone, together in zip(rows[:7], rows[7:], strict=True):
        assert together["request_key"] == alone["request_key"]
        assert together["loglikelihood"] == pytest.approx(alone["loglikelihood"], abs=1e-3)
        assert together["standard_error"] == pytest.approx(alone["standard_error"], abs=1e-3)


def test_the_decoder_of_a_backend_takes_no_part(call, database, tasks):
    call("run", "--backend", "uncached,dualcache", "--task", tasks.arc, "--limit", "1", *SMALL)
    rows = requests_of(database)
    assert [row["loglikelihood"] for row in rows[:3]] == [row["loglikelihood"] for row in rows[3:]]
    _, out, _ = call("runs", "--json")
    for run in json.loads(out)["runs"]:
        _, shown, _ = call("show", run["run_id"])
        assert "log-likelihoods depend on the model, not on the decoder" in shown


def test_resuming_gives_the_values_and_metrics_of_an_uninterrupted_run(call, database, tasks, monkeypatch, tmp_path):
    arguments = ("run", "--backend", "uncached", "--task", tasks.arc, *SMALL, "--json")
    _, out, _ = call(*arguments)
    (whole,) = json.loads(out)["runs"]
    expected = values_of(database)
    database.unlink()
    inner = QuestionSession.score

    def interrupted(self, questions, on_result, concurrency=1, on_shapes=None):
        done = []

        def keep(result):
            on_result(result)
            done.append(result.id)
            if len(done) == 4:
                raise KeyboardInterrupt

        return inner(
            self, questions, keep if not questions[0].id.startswith("warm-up") else on_result, concurrency, on_shapes
        )

    with monkeypatch.context() as patch:
        patch.setattr(QuestionSession, "score", interrupted)
        status, _, err = call(*arguments)
    assert status == 130
    assert "with --resume goes on from there" in err
    assert len(values_of(database)) == 4
    asked: list[str] = []

    def watched(self, questions, on_result, concurrency=1, on_shapes=None):
        asked.extend(q.id for q in questions if not q.id.startswith("warm-up"))
        return inner(self, questions, on_result, concurrency, on_shapes)

    with monkeypatch.context() as patch:
        patch.setattr(QuestionSession, "score", watched)
        status, out, _ = call(*arguments, "--resume")
    assert status == 0
    assert asked == ["4", "5", "6"]
    (run,) = json.loads(out)["runs"]
    assert values_of(database) == expected
    assert (run["metrics"], run["forwards"], run["resumed"]) == (whole["metrics"], whole["forwards"], True)
    # Once more scores what is stored and asks no model.
    with monkeypatch.context() as patch:
        patch.setattr(QuestionSession, "score", None)
        status, out, _ = call(*arguments, "--resume")
    assert (status, json.loads(out)["runs"][0]["metrics"]) == (0, whole["metrics"])


def test_requests_that_cannot_be_scored_fail_and_their_documents_are_left_out(call, tasks):
    """An answer of more than 16 tokens has too many masked copies to try them all."""
    status, out, err = call("run", "--backend", "uncached", "--task", tasks.texts, "--exact", "--json")
    assert status == 3
    (run,) = json.loads(out)["runs"]
    assert (run["failed"], run["metrics"]) == (3, {})
    assert "3 requests failed; they count as failures, not as wrong answers." in err


# -- what it refuses --


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--backend", "uncached", "--threshold", "0.9"], "Setting threshold is about decoding text, and my_arc asks for log-likelihoods of given answers. Leave it out. Known: batch_size, cfg_scale, compat, exact, mask_token_id, samples."),
        (["--backend", "ar", "--samples", "8"], "Setting samples means nothing for log-likelihoods, which my_arc asks for. An autoregressive model states them exactly, so nothing can be set about them."),
        (["--backend", "uncached", "--compat", "fast-dllm"], "compat=fast-dllm reproduces a way of decoding text. For log-likelihoods there is compat=llada."),
        (["--backend", "uncached", "--compat", "llada", "--samples", "40"], "compat=llada draws whole batches, and 40 samples are no multiple of batch_size=16. Change one of them."),
        (["--backend", "uncached", "--samples", "1"], "Setting samples=1 is too small: it must be at least 2."),
        (["--backend", "uncached", "--set", "sample=8"], "There is no setting 'sample' (backend 'uncached')."),
    ],
    ids=["threshold", "exact already", "compat", "whole batches", "samples", "typo"],
)  # fmt: skip
def test_a_setting_that_nothing_would_use_is_refused_with_a_sentence(call, tasks, arguments, said):
    status, out, err = call("run", "--task", tasks.arc, *arguments)
    assert (status, out) == (2, "")
    assert said in err


def test_settings_of_log_likelihoods_are_refused_where_text_is_asked_for(call):
    status, _, err = call("run", "--backend", "uncached", "--task", "gsm_mini", "--samples", "8")
    assert status == 2
    assert "Setting samples is about log-likelihoods, and gsm_mini asks for text. Leave it out." in err


def test_each_task_of_a_command_takes_the_settings_that_are_its_own(call, tasks):
    arguments = ("--backend", "uncached", "--task", f"gsm_mini,{tasks.arc}", "--limit", "1", "--dry-run", "--json")
    status, out, _ = call("run", *arguments, "--threshold", "0.5,0.9", "--set", "samples=8")
    assert status == 0
    assert [(run["task"], run["settings"]) for run in json.loads(out)["runs"]] == [
        ("gsm_mini", {"threshold": 0.5}),
        ("gsm_mini", {"threshold": 0.9}),
        ("my_arc", {"samples": 8}),
    ]


def test_a_backend_that_states_no_log_likelihoods_is_named(call, tasks, monkeypatch):
    from dllm_audit.backend import RecipeBackend

    for name in ("likelihood_settings", "resolve_likelihoods", "open_likelihoods"):
        monkeypatch.delattr(RecipeBackend, name)
    status, _, err = call("run", "--backend", "uncached", "--task", tasks.arc)
    assert status == 2
    assert "Backend 'uncached' states no log-likelihoods, which this task asks for." in err
