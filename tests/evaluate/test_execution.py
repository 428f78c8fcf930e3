"""What the runs of one command share."""

import pytest

from dllm_audit.evaluate.execution import Conditions, resumed, shown_command

COMMAND = "dllm-audit run --backend ar --baseline ar"


@pytest.fixture
def stored(empty_store, build):
    """A run of COMMAND, made under invocation-7."""
    row = build("run_row", "r", invocation="invocation-7")
    row["manifest"] = {**row["manifest"], "command": COMMAND}
    build("add_run", empty_store, row, [build("generation")], makespan=1.0)
    return empty_store


def test_what_is_resumed_and_what_is_new_are_of_one_command(stored):
    """So that a control that was still missing stands beside the baseline that was there."""
    assert resumed(Conditions(f"{COMMAND} --resume", resume=True), stored).invocation == "invocation-7"


@pytest.mark.parametrize(
    ("command", "resume"), [(COMMAND, False), (f"{COMMAND} --limit 2 --resume", True), ("dllm-audit 'run", True)]
)
def test_another_command_or_a_new_one_is_another_invocation(stored, command, resume):
    conditions = Conditions(command, resume=resume)
    assert resumed(conditions, stored) == conditions


@pytest.mark.parametrize("where", ["--db /somewhere/a.duckdb", "--db a.duckdb", "--db=elsewhere/a.duckdb"])
def test_where_the_results_are_makes_no_other_command(stored, where):
    """Its name has a folder while the file is not there yet, and none later: resumed runs once stood alone."""
    assert resumed(Conditions(f"{COMMAND} {where} --resume", resume=True), stored).invocation == "invocation-7"


def test_a_stored_command_names_no_folder_of_this_machine(tmp_path):
    task = tmp_path / "task.yaml"
    task.touch()
    given = [
        "run",
        "--task",
        f"{task},/gone/other.yaml",
        f"--db={tmp_path}/new.duckdb",
        "--model",
        "GSAI-ML/LLaDA",
        "a b",
    ]
    assert shown_command(given) == "run --task task.yaml,other.yaml --db=new.duckdb --model GSAI-ML/LLaDA 'a b'"
