"""`dllm-audit claims check` around the verdicts: broken files, missing runs, missing backends, code of a model."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from honest_claims import SWEEP

from dllm_audit.cli.claims import command
from dllm_audit.errors import UsageError

MECHANISM = SWEEP + (
    "mechanisms:\n"
    "  - {shows: A threshold is faster., backend: uncached, model: tiny-mdm, baseline: uncached, task: gsm_mini,\n"
    "     baseline_settings: {tokens_per_step: 1}, settings: {threshold: 0.9}, quantity: speed ratio,\n"
    "     expect: {low: 1.5, wording: at least 1.5x}}\n"
)


@pytest.fixture
def check(tmp_path):
    """check(arguments) -> the result on a folder with one claim and a results file that is not there."""
    folder = tmp_path / "claims"
    folder.mkdir()
    (folder / "honest-sweep.yaml").write_text(MECHANISM)

    def run(*arguments, text=None):
        if text is not None:
            (folder / "more.yaml").write_text(text)
        options = ["check", "--claims", str(folder), "--db", str(tmp_path / "none.duckdb"), *arguments]
        return CliRunner().invoke(command, options, catch_exceptions=False)

    return run


def test_a_broken_claim_file_does_not_quietly_leave_a_strict_check(check):
    assert check("--strict").exit_code == 0
    result = check("--strict", text="id: 1\n")
    assert result.exit_code == 1
    assert result.stderr.endswith(
        "1 claim file is not valid, so what it claims was not checked. See: dllm-audit claims validate\n"
    )
    assert check().exit_code == 0
    assert [path.endswith("more.yaml") for path in json.loads(check("--json").stdout)["left_out"]] == [True]
    # Who asks for one claim is told of that one.
    assert check("honest-sweep", "--strict").exit_code == 0


def test_without_runs_the_way_to_make_them_is_named(check, tmp_path):
    lines = check().stdout.splitlines()
    assert lines[-2:] == [
        "No runs for a recipe of honest-sweep.",
        f"To make those on embedded models, in minutes: dllm-audit claims check --run --mechanisms "
        f"--claims {tmp_path / 'claims'} --db {tmp_path / 'none.duckdb'}",
    ]


def test_without_runs_and_embedded_models_the_commands_of_a_claim_are_pointed_to(check, tmp_path):
    (tmp_path / "claims" / "honest-sweep.yaml").write_text(MECHANISM.replace("model: tiny-mdm", "model: some/model"))
    assert check().stdout.splitlines()[-1] == "What to run: dllm-audit claims check honest-sweep"


@pytest.fixture
def ran(monkeypatch):
    """The arguments of every run that was asked for."""
    asked = []
    monkeypatch.setattr("dllm_audit.cli.run.command.main", lambda arguments, **_: asked.append(arguments))
    return asked


def test_code_of_a_model_is_executed_only_where_that_was_asked_for(check, ran):
    check("--run")
    assert len(ran) == 2
    assert not any("--allow-code-execution" in arguments for arguments in ran)
    ran.clear()
    check("--run", "--allow-code-execution")
    assert all("--allow-code-execution" in arguments for arguments in ran)
    with pytest.raises(UsageError, match="say how --run makes the runs"):
        check("--allow-code-execution")


def test_a_recipe_whose_backend_is_not_installed_says_so_and_leaves_the_others_alone(check, ran):
    other = MECHANISM.replace("honest-sweep", "other").replace("backend: uncached", "backend: elsewhere")
    result = check("--run", text=other)
    assert (
        "A recipe of other cannot be run here: it needs the backend 'elsewhere', which is not installed. "
        "Install the plugin that has it; see: dllm-audit backends\n"
    ) in result.stderr
    assert len(ran) == 2


def test_a_question_of_one_field_without_an_answer_is_not_said_twice(tmp_path):
    path = tmp_path / "silent.yaml"
    lines = ["concurrency: not stated" if line.startswith("concurrency:") else line for line in SWEEP.splitlines()]
    path.write_text("\n".join(lines))
    text = CliRunner().invoke(command, ["show", str(path)], catch_exceptions=False).stdout
    assert "  concurrency not stated.\n" in text
    assert "Concurrency not stated." not in text
