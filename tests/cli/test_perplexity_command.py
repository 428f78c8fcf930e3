"""Perplexity of stored answers under a reference model."""

import json
from math import exp

import pytest
import torch
from click.testing import CliRunner

from dllm_audit.cli.main import cli
from dllm_audit.errors import AuditError, StoreError, UsageError
from dllm_audit.models.loading import find_model, load_model
from dllm_audit.records import Failure
from dllm_audit.store.database import Store

ANSWERS = [" He has 57 coins.\n#### 57", " pens", ""]


@pytest.fixture
def invoke(build, tmp_path, monkeypatch):
    """Run a command on one run with three answers, of which one is empty, and a failure. Errors of ours come out as they are."""
    path = tmp_path / "results.duckdb"
    monkeypatch.setenv("DLLM_AUDIT_DB", str(path))
    with Store.open(path, write=True) as store:
        results = [build("generation", text=text) for text in ANSWERS] + [Failure("3", "RequestError", "No.")]
        build("add_run", store, build("run_row", "run-1"), results, [1, 1, 1], makespan=1.0)
        build("add_scored_run", store, build("run_row", "given-1"), [[(-1.0, 0.0)]])

    def run(*arguments):
        outcome = CliRunner().invoke(cli, list(arguments))
        if isinstance(outcome.exception, AuditError):
            raise outcome.exception
        assert outcome.exit_code == 0, outcome.output
        return outcome

    return run


@pytest.fixture(scope="module")
def expected():
    """exp of the mean negative log-probability of every answer token, by transformers' own forward, one answer at a time."""
    model = load_model(find_model("tiny-ar"), "cpu", "float32")
    total, tokens = 0.0, 0
    for n, answer in enumerate(ANSWERS[:2]):
        prompt = model.tokenizer.encode(f"Question {n}\nAnswer:")
        ids = torch.tensor([model.tokenizer.encode(f"Question {n}\nAnswer:{answer}")])
        with torch.inference_mode():
            logits = model.module(ids, is_causal=True, use_cache=False).logits[0].log_softmax(-1)
        for at in range(len(prompt), ids.shape[1]):
            total -= float(logits[at - 1, ids[0, at]])
            tokens += 1
    return exp(total / tokens)


def test_perplexity_is_that_of_all_answer_tokens_after_their_prompts(invoke, expected):
    (found,) = json.loads(invoke("perplexity", "run", "--under", "tiny-ar", "--device", "cpu", "--json").stdout)["runs"]
    assert found["perplexity"]["value"] == pytest.approx(expected, rel=1e-4)
    assert (found["run_id"], found["reference"], found["answers"], found["left_out"]) == ("run-1", "tiny-ar", 2, 1)
    assert found["left_out_because"] == ["The answer is empty, so there is nothing to score."]


def test_it_is_kept_shown_and_not_asked_for_again(invoke, monkeypatch):
    from dllm_audit.decode.questions import QuestionSession

    scoring = ("perplexity", "run-1", "--under", "tiny-ar", "--device", "cpu")
    (found,) = json.loads(invoke(*scoring, "--json").stdout)["runs"]
    first = invoke(*scoring)
    assert f"{found['perplexity']['value']:.3f}" in first.stdout
    assert "2, 1 left out" in first.stdout
    asked = []
    score = QuestionSession.score
    monkeypatch.setattr(
        QuestionSession,
        "score",
        lambda self, questions, *rest: asked.extend(questions) or score(self, questions, *rest),
    )
    again = invoke(*scoring)
    assert again.stdout == first.stdout
    assert [question.answer for question in asked] == [""]
    text = invoke("show", "run-1").stdout
    (line,) = (line for line in text.splitlines() if "perplexity under tiny-ar" in line)
    assert f"{found['perplexity']['value']:.3f}" in line
    assert line.endswith("interval unknown: 2 of at least 5 answers; 1 answer left out")
    shown = json.loads(invoke("show", "run-1", "--json").stdout)["text_quality"]["perplexity"]
    assert [(one["reference"], one["answers"], one["left_out"]) for one in shown] == [("tiny-ar", 2, 1)]


def test_other_weights_of_the_same_name_replace_what_the_former_said(tmp_path, build):
    row = {"reference": "ref", "dtype": "float32", "scored_tokens": 1, "loglikelihood": -1.0}
    with Store.open(tmp_path / "x.duckdb", write=True) as store:
        build("add_run", store, build("run_row", "r"), [build("generation")] * 2)
        store.add_text_likelihoods("r", [{**row, "ordinal": n, "reference_sha256": "aa"} for n in (0, 1)])
        store.add_text_likelihoods("r", [{**row, "ordinal": 0, "reference_sha256": "bb"}])
        assert [(r["ordinal"], r["reference_sha256"]) for r in store.text_likelihoods("r")] == [(0, "bb")]


def test_a_diffusion_model_reads_no_perplexity(invoke):
    with pytest.raises(UsageError, match="tiny-mdm is no autoregressive model: its likelihoods are bounds"):
        invoke("perplexity", "run-1", "--under", "tiny-mdm")


def test_a_run_that_has_no_answers_of_its_own_is_refused(invoke):
    with pytest.raises(UsageError, match="given-1 scored given answers and has none of its own"):
        invoke("perplexity", "given-1", "--under", "tiny-ar", "--device", "cpu")


def test_a_run_that_is_not_there_is_said_before_a_model_is_loaded(invoke):
    with pytest.raises(StoreError, match="There is no run 'nothing'"):
        invoke("perplexity", "nothing", "--under", "tiny-ar")
