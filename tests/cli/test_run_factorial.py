"""`dllm-audit run --factorial`: four configurations from one that has both changes."""

from __future__ import annotations

import json

import pytest

from dllm_audit.cli.main import main
from dllm_audit.store.database import Store

SMALL = ("--task", "gsm_mini", "--limit", "2", "--gen-length", "8", "--block-length", "8", "--trace", "0")


@pytest.fixture
def call(capsys, tmp_path):
    """call(arguments) -> (exit status, stdout, stderr) of `dllm-audit run` with a results file of its own."""

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main(["run", "--db", str(tmp_path / "results.duckdb"), *arguments])
        captured = capsys.readouterr()
        return end.value.code, captured.out, captured.err

    return run


def test_four_configurations_run_in_balanced_order_and_say_what_each_change_does(call, tmp_path):
    arguments = ("--backend", "dualcache", "--threshold", "0.9", "--factorial", "cache,threshold", "--repeats", "2")
    status, out, err = call(*arguments, *SMALL, "--json")
    assert status == 0, err
    facts = json.loads(out)
    order = [(run["backend"], run["settings"]["threshold"]) for run in facts["runs"]]
    cells = [("uncached", None), ("dualcache", None), ("uncached", 0.9), ("dualcache", 0.9)]
    assert order == [*cells, *reversed(cells)]
    (found,) = facts["factorials"]
    assert found["factors"] == ["cache", "threshold"]
    assert [(cell["cache"], cell["threshold"]) for cell in found["cells"]] == [
        (False, False), (True, False), (False, True), (True, True),
    ]  # fmt: skip
    assert all(cell["quality"]["value"] is not None for cell in found["cells"])
    with Store.open(tmp_path / "results.duckdb") as store:
        assert store.runs()[1]["manifest"]["factorial"] == {"cache": True, "threshold": False}


def test_the_steps_that_a_threshold_outranks_count_where_it_is_off(call):
    arguments = ("--backend", "dualcache", "--threshold", "0.9", "--tokens-per-step", "4")
    status, out, _ = call(*arguments, "--factorial", "threshold,tokens_per_step", "--dry-run", "--json", *SMALL)
    assert status == 0
    switched = [
        {name: run["settings"].get(name) for name in ("threshold", "tokens_per_step")}
        for run in json.loads(out)["runs"]
    ]
    assert switched == [
        {"threshold": None, "tokens_per_step": None},
        {"threshold": 0.9, "tokens_per_step": None},
        {"threshold": None, "tokens_per_step": 4},
        {"threshold": 0.9, "tokens_per_step": 4},
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("dualcache", "cache"), "name two different factors, for example --factorial cache,threshold."),
        (("dualcache", "cache,cache"), "name two different factors"),
        (("dualcache", "cache,threshold"), "so give it a value: --threshold VALUE."),
        (("dualcache", "cache,thresold"), "has no such setting. Did you mean 'threshold'?"),
        (("dualcache,prefixcache", "cache,threshold"), "--factorial is about one backend, and --backend names 2."),
        (("uncached", "cache,threshold", "--threshold", "0.9"), "has no cache that could be switched off."),
        (("block", "cache,threshold", "--threshold", "0.9"), "--factorial cache compares with uncached, which cannot be"),
        (("dualcache", "cache,threshold", "--threshold", "0.8,0.9"), "one value of each setting"),
    ],
)  # fmt: skip
def test_what_cannot_be_switched_is_refused_with_a_sentence(call, arguments, message):
    backend, factors, *more = arguments
    status, _, err = call("--backend", backend, "--factorial", factors, *more, *SMALL)
    assert status == 2
    assert message in err
