"""Memory at its peak and energy of the parts of a run."""

import pytest
import torch

from dllm_audit.measure import memory, usage
from dllm_audit.measure.energy import EnergyReading, EnergySource
from dllm_audit.measure.memory import PeakMemory
from dllm_audit.measure.usage import UsageMeter

CPU = torch.device("cpu")
MIB = 2**20


def test_the_peak_of_a_process_is_seen_after_it_has_passed():
    mark = PeakMemory(CPU)
    before = mark.read()["peak_process_memory_bytes"]
    block = torch.ones(64 * MIB // 4)
    del block
    found = mark.read()
    assert 60 * MIB < found["peak_process_memory_bytes"] - before < 100 * MIB
    assert found["peak_memory_of"].startswith("VmHWM of the process, since ")


def test_a_kernel_that_does_not_forget_the_peak_is_told_of(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "_CLEAR", tmp_path / "missing" / "clear_refs")
    assert PeakMemory(CPU).read()["peak_memory_of"] == "VmHWM of the process, since the process began"


def test_a_kernel_that_only_seems_to_forget_is_told_of(monkeypatch, tmp_path):
    status = tmp_path / "status"
    status.write_text("VmHWM:\t  2000 kB\nVmRSS:\t  1000 kB\n")
    monkeypatch.setattr(memory, "_CLEAR", tmp_path / "clear_refs")
    monkeypatch.setattr(memory, "_STATUS", status)
    assert PeakMemory(CPU).read() == {
        "peak_process_memory_bytes": 2000 * 1024,
        "peak_memory_of": "VmHWM of the process, since the process began",
    }


def test_other_systems_give_the_peak_of_the_whole_process(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "_STATUS", tmp_path / "missing")
    found = PeakMemory(CPU).read()
    assert found["peak_memory_of"] == "ru_maxrss of the process, since it began"
    assert found["peak_process_memory_bytes"] > 0


def test_of_a_gpu_it_is_what_torch_allocated_there(monkeypatch):
    reset = []
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", reset.append)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 12345)
    device = torch.device("cuda", 1)
    assert PeakMemory(device).read() == {
        "peak_device_memory_bytes": 12345,
        "peak_memory_of": "torch.cuda.max_memory_allocated, since the first request",
    }
    assert reset == [device]


class Parts:
    """Windows whose readings and peaks are given here."""

    def __init__(self, monkeypatch, *parts):
        self.left = list(parts)
        self.looks = 0
        monkeypatch.setattr(usage, "EnergyWindow", lambda counter: self)
        monkeypatch.setattr(usage, "PeakMemory", lambda device: self)

    def look(self):
        self.looks += 1

    def close(self):
        return self.left[0][0]

    def read(self):
        return {"peak_process_memory_bytes": self.left.pop(0)[1], "peak_memory_of": "x"}


class Counter:
    name = "a counter"


SOURCE = EnergySource(Counter(), idle_watts=40.0)


def test_parts_add_up_their_energy_and_keep_the_highest_peak(monkeypatch):
    parts = Parts(monkeypatch, (EnergyReading(100.0, 10.0), 5), (EnergyReading(50.0, 6.0), 3))
    meter = UsageMeter(CPU, SOURCE)
    for _ in range(2):
        with meter.window():
            meter.look()
    meter.look()  # between two parts nothing is open
    assert parts.looks == 2
    assert meter.as_dict() == {
        "peak_process_memory_bytes": 5,
        "peak_memory_of": "x",
        "energy": {"joules": 150.0, "seconds": 16.0, "counter": "a counter", "idle_watts": 40.0},
    }


def test_one_part_of_unknown_energy_makes_the_whole_unknown(monkeypatch):
    Parts(monkeypatch, (EnergyReading(100.0, 10.0), 5), (EnergyReading(None, 1.0, "too short"), 3))
    meter = UsageMeter(CPU, SOURCE)
    for _ in range(2):
        with meter.window():
            pass
    found = meter.as_dict()["energy"]
    assert (found["joules"], found["seconds"], found["reason"]) == (None, 11.0, "too short")


def test_what_ends_a_part_early_loses_neither_memory_nor_energy(monkeypatch):
    Parts(monkeypatch, (EnergyReading(100.0, 10.0), 5))
    meter = UsageMeter(CPU, SOURCE)
    with pytest.raises(KeyboardInterrupt), meter.window():
        raise KeyboardInterrupt
    assert meter.as_dict()["energy"]["joules"] == 100.0


def test_without_a_counter_the_reason_is_kept():
    meter = UsageMeter(CPU, EnergySource(None, "there is none"))
    with meter.window():
        meter.look()
    found = meter.as_dict()
    assert found["energy"] == {"joules": None, "reason": "there is none"}
    assert found["peak_process_memory_bytes"] > 0
