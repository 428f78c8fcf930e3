"""What the runs of one command share."""

import pytest

from dllm_audit.evaluate.execution import Conditions, resumed

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
