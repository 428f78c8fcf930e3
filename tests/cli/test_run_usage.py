"""`dllm-audit run` stores what it used: memory at its peak, energy by a counter, and how the machine was before and after."""

from __future__ import annotations

import json

import pytest

from dllm_audit.analysis.summary import summarise
from dllm_audit.cli.main import main
from dllm_audit.measure import energy
from dllm_audit.store.database import Store

SMALL = ("--task", "gsm_mini", "--limit", "3", "--gen-length", "8", "--trace", "0", "--json", "--device", "cpu")


class Counter:
    """Ten joules more at every look."""

    name = "a counter"

    def __init__(self):
        self.total = 0.0

    def joules(self):
        self.total += 10.0
        return self.total


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """run(arguments, source) -> (exit status, facts printed as JSON, the stored manifest)."""

    def call(source, *arguments):
        database = tmp_path / "results.duckdb"
        monkeypatch.setattr(energy, "find_energy_source", lambda device: source)
        with pytest.raises(SystemExit) as end:
            main(["run", "--backend", "dualcache", "--db", str(database), *SMALL, *arguments])
        out = capsys.readouterr().out
        with Store.open(database) as store:
            (stored,) = store.runs()
            summary = summarise(store, stored["run_id"])
        return end.value.code, json.loads(out)["runs"][0] if out else None, stored["manifest"], summary

    return call


def test_memory_energy_and_the_machine_before_and_after_are_stored(run, monkeypatch):
    monkeypatch.setattr(energy.EnergyWindow.close, "__defaults__", (0.0,))
    _, facts, manifest, summary = run(energy.EnergySource(Counter()))
    (used,) = manifest["usage"]
    # Looks at the counter: when the window opens, at each of three results, when it closes.
    assert (used["sitting"], used["energy"]["joules"], used["energy"]["counter"]) == (1, 40.0, "a counter")
    assert used["energy"]["idle_watts"] is None  # not asked for here
    assert facts["joules"] == summary.consumption.energy.value == 40.0
    assert facts["peak_memory_bytes"] == used["peak_process_memory_bytes"] > 1e6
    environment = manifest["environment"]
    assert environment["memory_available_bytes_before"] > 0
    assert environment["memory_available_bytes_after"] > 0
    assert "memory_available_bytes" not in environment


def test_so_short_a_run_has_no_energy_and_says_why(run):
    _, facts, _, summary = run(energy.EnergySource(Counter()))
    assert facts["joules"] is None
    assert summary.consumption.energy.reason.endswith("is shorter than 5 s, which an energy counter needs")


def test_a_run_that_was_interrupted_keeps_the_usage_of_every_sitting(run, monkeypatch):
    monkeypatch.setattr(energy.EnergyWindow.close, "__defaults__", (0.0,))
    add = Store.add_result
    answered = []

    def interrupted(self, *args, **rest):
        add(self, *args, **rest)
        answered.append(args)
        if len(answered) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Store, "add_result", interrupted)
    status, _, manifest, summary = run(energy.EnergySource(Counter()))
    assert status == 130
    assert [used["sitting"] for used in manifest["usage"]] == [1]
    assert summary.consumption.energy.value is not None
    status, _, manifest, summary = run(energy.EnergySource(Counter()), "--resume")
    assert status == 0
    assert [used["sitting"] for used in manifest["usage"]] == [1, 2]
    joules = sum(used["energy"]["joules"] for used in manifest["usage"])
    assert summary.consumption.energy.value == joules
    assert manifest["resumed_with"][0]["environment"]["memory_available_bytes_after"] > 0
