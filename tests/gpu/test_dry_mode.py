"""The steps that a GPU would run work on tiny models without one; and a step that fails or hangs costs no other."""

from __future__ import annotations

import json
import time

import pytest
from click.testing import CliRunner

from dllm_audit.cli.main import cli
from tests.gpu import product, runner
from tests.gpu.__main__ import main
from tests.gpu.models import Context
from tests.gpu.runner import STEPS, outcome, run_steps
from tests.gpu.steps import Found, Step

BY_NAME = {step.name: step for step in STEPS}
#: What is judged on a CPU too; of the others only that they measure.
JUDGED = {"batches", "fixed", "golden", "clock", "memory"}


@pytest.mark.parametrize("name", [s.name for s in STEPS if not s.needs_cuda and s.name not in ("run", "golden")])
def test_a_step_works_without_a_gpu(name, tmp_path):
    found = outcome(BY_NAME[name], Context("cpu", tmp_path))
    assert found["status"] == ("passed" if name in JUDGED else "measured"), found
    assert found["sentence"]
    assert json.loads(json.dumps(found, default=str))["facts"]


def test_recorded_decodes_are_counted_without_a_gpu(tmp_path, monkeypatch):
    from tests.golden import golden_counts

    some = {name: golden_counts.MODELS[name] for name in ("llada_original", "dream_original")}
    monkeypatch.setattr(golden_counts, "MODELS", some)
    found = outcome(BY_NAME["golden"], Context("cpu", tmp_path))
    assert found["sentence"] == "5 of 5 recorded cases are exact"  # one of each family, and of log-likelihoods
    assert found["status"] == "passed"


def test_the_product_is_run_end_to_end_and_what_it_stored_is_looked_at(tmp_path, monkeypatch):
    ran = []

    def here(arguments):
        ran.append(arguments[0])
        done = CliRunner().invoke(cli, arguments)
        return done.exit_code, done.stdout, done.stderr

    monkeypatch.setattr(product, "command", here)
    found = outcome(BY_NAME["run"], Context("cpu", tmp_path))
    assert found["status"] == "passed", found
    assert ran == ["run", "show", "show", "show", "report", "doctor"]
    assert {run["role"] for run in found["facts"]["runs"]} == {"candidate", "baseline", "control"}


def test_what_a_run_did_not_store_fails_the_step(tmp_path):
    manifest = {"environment": {"threads": 1, "torch": "2"}, "usage": [{}], "engine": {"device": "cuda:1"}}
    assert product._missing(manifest, Context("cpu", tmp_path)) == [
        "it ran on cuda:1",
        "no memory_available_bytes_before was stored",
        "no memory_available_bytes_after was stored",
        "no peak_process_memory_bytes was stored",
    ]


def test_a_command_that_fails_fails_the_step_with_its_last_words(tmp_path, monkeypatch):
    monkeypatch.setattr(product, "command", lambda arguments: (2, "", "Loading ...\nError: no such model\n"))
    assert outcome(BY_NAME["run"], Context("cpu", tmp_path)) == {
        "status": "failed",
        "sentence": "run --engine eager ended with 2: Error: no such model",
        "facts": {"runs": []},
    }


# -- the runner --


def step(name, run=None, **changed):
    return Step(name, "about", run or (lambda context: Found(True, "good")), **{"most_seconds": 60.0, **changed})


def test_a_step_that_breaks_says_why(tmp_path):
    def broken(context):
        raise RuntimeError("CUDA error: an illegal memory access")

    found = outcome(step("x", broken), Context("cpu", tmp_path))
    assert (found["status"], found["sentence"]) == ("broken", "RuntimeError: CUDA error: an illegal memory access")
    assert "Traceback" in found["facts"]["traceback"]


@pytest.mark.parametrize(("passed", "status"), [(True, "passed"), (False, "failed"), (None, "measured")])
def test_what_a_step_found_is_a_status(tmp_path, passed, status):
    found = outcome(step("x", lambda context: Found(passed, "so", {"n": 1})), Context("cpu", tmp_path))
    assert found == {"status": status, "sentence": "so", "facts": {"n": 1}}


@pytest.fixture
def results(tmp_path, monkeypatch):
    """results(steps, outcomes by name, seconds) -> (exit status, the results file) with processes that are given here."""

    def call(steps, given, seconds=60.0):
        monkeypatch.setattr(runner, "_one", lambda step, device, most, folder: given[step.name](most))
        output = tmp_path / "results.json"
        status = run_steps(steps, "cpu", seconds, output)
        return status, json.loads(output.read_text())

    return call


def as_found(status):
    return lambda most: {"status": status, "sentence": "so", "facts": {}}


@pytest.mark.parametrize("status", ["passed", "measured", "skipped", "failed", "broken", "out of time"])
def test_the_whole_succeeds_when_no_step_went_wrong(results, capsys, status):
    steps = [step("one"), step("two")]
    code, kept = results(steps, {"one": as_found("passed"), "two": as_found(status)})
    assert code == (status in ("failed", "broken", "out of time"))
    assert [(each["step"], each["status"]) for each in kept["steps"]] == [("one", "passed"), ("two", status)]
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split() == ["passed", "one", "0", "s", "so"]


def test_a_step_may_take_its_own_limit_or_what_is_left_of_all(results):
    limits = {}

    def noting(name):
        return lambda most: limits.setdefault(name, most) and as_found("passed")(most)

    results(
        [step("short", most_seconds=5.0), step("long", most_seconds=700.0)],
        {n: noting(n) for n in ("short", "long")},
        600.0,
    )
    assert limits["short"] == 5.0
    assert 590.0 < limits["long"] < 600.0


def test_with_more_time_for_all_of_them_every_step_may_take_longer(results):
    limits = []
    results(
        [step("one", most_seconds=5.0)], {"one": lambda most: limits.append(most) or as_found("passed")(most)}, 1200.0
    )
    assert limits == [10.0]


def test_a_step_for_which_no_time_is_left_is_not_run_and_no_success(results):
    code, kept = results([step("one")], {}, seconds=0.5)
    assert code == 1
    assert kept["steps"][0]["status"] == "not run"


def test_a_step_that_needs_cuda_is_skipped_without(tmp_path):
    assert runner._one(step("x", needs_cuda=True), "cpu", 5.0, tmp_path)["status"] == "skipped"


def test_a_process_that_hangs_is_ended_with_all_that_it_started(tmp_path, monkeypatch):
    script = tmp_path / "sh"
    script.write_text("#!/bin/sh\necho begun\nsleep 60 & sleep 60\n")
    script.chmod(0o755)
    monkeypatch.setattr(runner.sys, "executable", str(script))
    began = time.monotonic()
    found = runner._one(step("x"), "cpu", 0.5, tmp_path)
    assert (found["status"], found["facts"]["output"]) == ("out of time", "begun\n")
    assert time.monotonic() - began < 20


def test_a_process_that_dies_without_a_result_is_said(tmp_path, monkeypatch):
    script = tmp_path / "sh"
    script.write_text("#!/bin/sh\necho Segmentation fault\nexit 139\n")
    script.chmod(0o755)
    monkeypatch.setattr(runner.sys, "executable", str(script))
    found = runner._one(step("x"), "cpu", 20.0, tmp_path)
    assert found["sentence"] == "its process ended with 139 and left no result"
    assert found["facts"]["output"] == "Segmentation fault\n"


def test_one_step_in_a_process_of_its_own_writes_what_it_found(tmp_path):
    output = tmp_path / "results.json"
    assert main(["environment", "--device", "cpu", "--output", str(output)]) == 0
    (kept,) = json.loads(output.read_text())["steps"]
    assert (kept["step"], kept["status"]) == ("environment", "measured")
    assert kept["facts"]["environment"]["device"] == "cpu"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing"], "there is no step 'nothing'. Known: environment, batches,"),
        (["--minutes", "0"], "--minutes 0 leaves no time for anything."),
    ],
)
def test_wrong_use_is_said(arguments, words, capsys):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert words in capsys.readouterr().err
