"""`dllm-audit run` measures what the device can do, once, outside every clock, and stores it beside the model's sizes."""

from __future__ import annotations

import json

import pytest

from dllm_audit.cli.main import main
from dllm_audit.errors import AuditError
from dllm_audit.measure import roofline_device
from dllm_audit.measure.roofline import DeviceSpeed
from dllm_audit.store.database import Store

#: No cache size, so that the embedded models have a share.
SPEED = DeviceSpeed("cpu", 1e12, 1e13, "measured", "reading 256 MiB")


@pytest.fixture
def run(capsys, tmp_path):
    """run(arguments) -> (facts printed as JSON, stored manifests, stderr)."""

    def call(*arguments: str):
        database = tmp_path / "results.duckdb"
        small = ("--task", "gsm_mini", "--limit", "2", "--gen-length", "8", "--trace", "0", "--json")
        with pytest.raises(SystemExit) as end:
            main(["run", "--db", str(database), *small, *arguments])
        captured = capsys.readouterr()
        assert end.value.code == 0, captured.err
        with Store.open(database) as store:
            manifests = [stored["manifest"] for stored in store.runs()]
        return json.loads(captured.out)["runs"], manifests, captured.err

    return call


@pytest.fixture
def measured(monkeypatch):
    """How often the device was measured, and what for."""
    asked = []
    monkeypatch.setattr(roofline_device, "measure_device", lambda *kind: asked.append(kind[:2]) or SPEED)
    return asked


def test_the_device_is_measured_once_for_all_runs_of_a_command(run, measured):
    runs, manifests, _ = run("--backend", "ar,dualcache", "--roofline")
    assert [(str(device), str(dtype)) for device, dtype in measured] == [("cpu", "torch.float32")]
    assert [manifest["roofline"]["device"] for manifest in manifests] == [SPEED.as_dict()] * 2
    assert manifests[0]["roofline"]["bytes_per_weight"] == 4
    assert manifests[0]["roofline"]["dimensions"]["layers"] == 5
    for facts in runs:
        assert facts["share_of_bound"] is not None
        assert 0 < facts["share_of_bound"] < 1


def test_without_it_nothing_is_measured_and_the_run_has_no_share(run, measured):
    runs, manifests, _ = run("--backend", "ar", "--no-roofline")
    assert measured == []
    assert "roofline" not in manifests[0]
    assert runs[0]["share_of_bound"] is None


def test_a_device_that_cannot_be_measured_costs_the_share_and_not_the_run(run, monkeypatch):
    def short(*kind):
        raise AuditError("There is not enough free memory.")

    monkeypatch.setattr(roofline_device, "measure_device", short)
    runs, _, err = run("--backend", "ar", "--roofline")
    assert runs[0]["share_of_bound"] is None
    assert "Warning: There is not enough free memory. The runs of this command have no share of the bound.\n" in err
