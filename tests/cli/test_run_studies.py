"""`dllm-audit run --until-decided`, `--choose` and `--templates`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dllm_audit.cli.main import main
from dllm_audit.decode.session import RecipeSession
from dllm_audit.store.database import Store

SIDES = ("--backend", "dualcache", "--baseline", "ar", "--task", "gsm_mini", "--gen-length", "8", "--trace", "0")
AUDIT = (*SIDES, "--until-decided", "--margin", "50", "--limit", "40", "--threshold", "0.1", "--json")


@pytest.fixture
def database(tmp_path) -> Path:
    return tmp_path / "results.duckdb"


@pytest.fixture
def call(capsys, database):
    """call(arguments) -> (exit status, stdout, stderr) of `dllm-audit run`."""

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main(["run", "--db", str(database), *arguments])
        captured = capsys.readouterr()
        return end.value.code, captured.out, captured.err

    return run


@pytest.fixture
def decoded(monkeypatch):
    """(ids of what was decoded in timed regions, in order; a list whose one number ends decoding after so many)."""
    ids: list[str] = []
    stop: list[int] = []
    inner = RecipeSession.generate

    def generate(self, requests, on_result, concurrency=1, traced=False, on_shapes=None, arrivals=None):
        requests = list(requests)
        if not traced and not requests[0].id.startswith("warm-up"):
            if stop and len(ids) >= stop[0]:
                raise KeyboardInterrupt
            ids.extend(request.id for request in requests)
        return inner(self, requests, on_result, concurrency, traced, on_shapes, arrivals)

    monkeypatch.setattr(RecipeSession, "generate", generate)
    return ids, stop


def runs(database: Path) -> dict[str, dict]:
    with Store.open(database) as store:
        return {run["role"]: {**run, "done": store.requests(run["run_id"])} for run in store.runs()}


def test_an_audit_ends_when_it_is_decided_and_both_sides_keep_why(call, database, decoded):
    status, out, err = call(*AUDIT)
    assert status == 0, err
    facts = json.loads(out)["sequential"]
    assert (facts["stopped"], facts["margin"], facts["metric"]) == ("decided", 0.5, "exact_match")
    assert facts["pairs"] == len(facts["documents"]) < 40
    assert facts["requests"] == 2 * facts["pairs"]
    assert facts["requests_saved"] == 80 - facts["requests"]
    stored = runs(database)
    assert {role: run["status"] for role, run in stored.items()} == dict.fromkeys(stored, "complete")
    for role in ("candidate", "baseline"):
        assert stored[role]["manifest"]["sequential"] == {**facts, "side": role}
        assert {row["doc_id"] for row in stored[role]["done"]} == set(facts["documents"])
        elapsed = sorted(row["elapsed_seconds"] for row in stored[role]["done"])
        assert elapsed[-1] == pytest.approx(stored[role]["makespan_seconds"])
        assert elapsed[-1] >= sum(row["total_seconds"] for row in stored[role]["done"]) * 0.99
    assert len(stored["control"]["done"]) == min(20, facts["pairs"])
    assert f"{facts['pairs']}/40 documents: " in err


def test_sides_take_turns_document_by_document(call, decoded):
    """Candidate, baseline, control; then the other way round: the document in the middle is decoded by all before the next."""
    call(*AUDIT)
    ids = decoded[0][:12]
    assert [len(set(ids[n : n + 3])) for n in range(0, 12, 3)] == [1, 1, 1, 1]
    assert len(set(ids)) == 4


def test_an_interrupted_audit_goes_on_in_the_same_order_and_repeats_nothing(call, database, decoded):
    ids, stop = decoded
    stop.append(31)
    status, _, _ = call(*AUDIT)
    assert status == 130
    assert {run["status"] for run in runs(database).values()} == {"interrupted"}
    before = sum(len(run["done"]) for run in runs(database).values())
    assert before == 31
    stop.clear()
    ids.clear()
    status, out, err = call(*AUDIT, "--resume")
    assert status == 0, err
    stored = runs(database)
    assert len(stored) == 3
    assert len(ids) == sum(len(run["done"]) for run in stored.values()) - before
    assert {run["status"] for run in stored.values()} == {"complete"}
    facts = json.loads(out)["sequential"]
    ids.clear()
    status, again, _ = call(*AUDIT, "--resume")
    assert (status, ids) == (0, [])
    assert json.loads(again)["sequential"] == facts


def test_a_graded_metric_cannot_decide_an_audit(call, tmp_path):
    (tmp_path / "docs.jsonl").write_text('{"q": "a", "a": "b"}\n' * 3, encoding="utf-8")
    task = tmp_path / "graded.yaml"
    task.write_text(
        "task: graded\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test: docs.jsonl\n"
        "output_type: generate_until\ntest_split: test\ndoc_to_text: '{{q}}'\ndoc_to_target: '{{a}}'\n"
        "generation_kwargs:\n  until: []\n  max_gen_toks: 4\nmetric_list:\n  - metric: ter\n",
        encoding="utf-8",
    )
    status, _, err = call("--backend", "ar", "--baseline", "ar", "--task", str(task), "--until-decided", "--trace", "0")
    assert status == 2
    assert "--until-decided needs a metric that is right or wrong for each document" in err


def test_a_threshold_is_chosen_on_documents_that_do_not_judge_it(call, database):
    status, out, err = call(
        "--backend", "dualcache", "--task", "gsm_mini", "--gen-length", "8", "--trace", "0", "--limit", "8",
        "--threshold", "0.5,0.9", "--choose", "--tuning", "3", "--json",
    )  # fmt: skip
    assert status == 0, err
    found = json.loads(out)
    (run,), (choice,) = found["runs"], found["choices"]
    assert run["requests"] == 5
    assert run["settings"]["threshold"] == choice["chosen"]
    with Store.open(database) as store:
        stored = {r["run_id"]: {row["doc_id"] for row in store.requests(r["run_id"])} for r in store.runs()}
        judged = stored.pop(run["run_id"])
        assert store.run(run["run_id"])["manifest"]["choice"] == choice
    assert [t["run_id"] for t in choice["tried"]] == list(stored)
    assert all(len(documents) == 3 and not documents & judged for documents in stored.values())


def test_templates_make_a_comparison_each_and_say_whether_the_ranking_holds(call, tmp_path):
    file = tmp_path / "two.yaml"
    file.write_text(
        "- {name: short, doc_to_text: 'Q: {{question}}'}\n- {name: none, num_fewshot: 0}\n", encoding="utf-8"
    )
    status, out, err = call(*SIDES, "--limit", "2", "--templates", str(file), "--json")
    assert status == 0, err
    found = json.loads(out)
    (study,) = found["templates"]
    assert [row["template"] for row in study["templates"]] == ["short", "none"]
    assert study["speed_ranking"]["verdict"] in ("holds", "flips", "open")
    assert len(found["runs"]) == 6
    status, text, _ = call(*SIDES, "--limit", "2", "--templates", str(file), "--resume")
    assert status == 0
    assert "under 2 templates" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--until-decided", "--concurrency", "2"], "--until-decided needs one request in flight"),
        (["--until-decided", "--repeats", "2"], "--until-decided decides one question, and this plan has 2 of them."),
        (["--until-decided", "--engine", "compile"], "--engine compile compiles anew each time"),
        (["--until-decided", "--margin", "0.5"], "0.5 could be 0.5 points or 50. Write 0.005 or 50."),
        (["--margin", "2"], "--margin is the loss that --until-decided, --choose and --templates allow"),
        (["--choose"], "--choose takes one of several thresholds, and this plan has one."),
        (["--tuning", "5"], "--tuning is how many documents --choose chooses on."),
        (["--templates", "builtin", "--until-decided"], "--templates asks one question in several ways"),
        (["--templates", "nowhere.yaml"], "--templates nowhere.yaml cannot be read: No such file or directory."),
    ],
)
def test_what_cannot_be_carried_out_is_a_sentence_before_anything_is_decoded(
    call, decoded, database, arguments, message
):
    status, _, err = call(*SIDES, *arguments)
    assert (status, message in err) == (2, True), err
    assert decoded[0] == []
    assert not database.exists()


@pytest.mark.parametrize("margin", ["2", "0.02"])
def test_a_dry_run_says_how_many_pairs_a_decision_takes_in_points_or_as_a_share(call, margin):
    status, out, _ = call(*SIDES, "--until-decided", "--margin", margin, "--limit", "40", "--dry-run", "--json")
    found = json.loads(out)["sequential"]
    assert (status, found["margin"]) == (0, 0.02)
    assert [p["difference"] for p in found["projections"]] == pytest.approx([0.0, -0.06, 0.06])
