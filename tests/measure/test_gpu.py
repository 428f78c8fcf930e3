"""What nvidia-smi answers becomes facts; what it cannot tell says why."""

import os
import subprocess
from types import SimpleNamespace

import pytest
import torch

from dllm_audit.measure import gpu

DEVICE = torch.device("cuda", 0)


@pytest.fixture
def smi(monkeypatch):
    """Answers of an nvidia-smi, and what it was asked: smi(answer) or smi(function of the query)."""
    asked = []

    def install(answer):
        def run(command, **options):
            asked.append(command)
            found = answer(command[2]) if callable(answer) else answer
            if isinstance(found, Exception):
                raise found
            code, out = found if isinstance(found, tuple) else (0, found)
            return subprocess.CompletedProcess(command, code, out, "")

        monkeypatch.setattr(gpu.subprocess, "run", run)
        return asked

    properties = SimpleNamespace(uuid="1234-abcd")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 0)
    return install


def test_standing_facts_are_asked_of_the_device_by_its_uuid(smi):
    asked = smi("580.65.06, 700.00, 1980, Disabled\n")
    assert gpu.standing_facts(DEVICE) == {
        "gpu_driver": "580.65.06",
        "gpu_limit_watts": 700.0,
        "gpu_max_mhz": 1980,
        "gpu_mig_mode": "Disabled",
    }
    assert asked[0][:2] == ["nvidia-smi", "--id=GPU-1234-abcd"]


def test_what_the_device_does_not_tell_says_so(smi):
    smi("580.65.06, [N/A], 1980, [Insufficient Permissions]\n")
    found = gpu.standing_facts(DEVICE)
    assert found["gpu_limit_watts"] == "unknown: nvidia-smi says N/A"
    assert found["gpu_mig_mode"] == "unknown: nvidia-smi says Insufficient Permissions"


def test_a_field_that_this_driver_does_not_know_costs_that_field_alone(smi):
    def answer(query):
        if "mig.mode.current" in query:
            return 2, 'Field "mig.mode.current" is not a valid field to query.\n'
        return "580.65.06, 700.00, 1980\n"

    smi(answer)
    assert gpu.standing_facts(DEVICE) == {
        "gpu_driver": "580.65.06",
        "gpu_limit_watts": 700.0,
        "gpu_max_mhz": 1980,
        "gpu_mig_mode": "unknown: this nvidia-smi does not tell it",
    }


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (FileNotFoundError(), "unknown: nvidia-smi is not on the path; it comes with the driver"),
        (subprocess.TimeoutExpired("nvidia-smi", 10), "unknown: nvidia-smi did not answer (TimeoutExpired)"),
        ((9, "No devices were found\n"), "unknown: nvidia-smi failed: No devices were found"),
    ],
)
def test_without_nvidia_smi_every_fact_says_why(smi, answer, why):
    smi(answer)
    assert set(gpu.standing_facts(DEVICE).values()) == {why}
    assert set(gpu.readings(DEVICE).values()) == {why}


def test_a_device_that_failed_is_no_error_of_its_description(smi, monkeypatch):
    smi("")

    def lost(device):
        raise RuntimeError("CUDA error: device lost")

    monkeypatch.setattr(torch.cuda, "get_device_properties", lost)
    why = "unknown: the device does not answer (CUDA error: device lost)"
    assert set(gpu.readings(DEVICE).values()) == {why}


def test_processes_of_others_are_counted_without_this_one(smi):
    smi(lambda query: f"{os.getpid()}\n77\n" if "compute-apps" in query else "1, 2, 3.5, 40, 0, 0x0\n")
    assert gpu.readings(DEVICE) == {
        "gpu_clock_sm_mhz": 1,
        "gpu_clock_memory_mhz": 2,
        "gpu_power_watts": 3.5,
        "gpu_temperature_celsius": 40,
        "gpu_utilization_percent": 0,
        "gpu_throttle_reasons": "0x0",
        "gpu_other_processes": 1,
    }


def test_in_a_container_this_process_has_another_number_and_is_still_left_out(smi, monkeypatch):
    import psutil

    smi("4000001\n4000002\n")
    monkeypatch.setattr(psutil, "pid_exists", lambda pid: False)
    assert gpu.other_processes(DEVICE) == [4000001, 4000002]  # nothing of ours is on the device
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 1)
    assert gpu.other_processes(DEVICE) == [4000001]
    monkeypatch.setattr(psutil, "pid_exists", lambda pid: True)
    assert gpu.other_processes(DEVICE) == [4000001, 4000002]  # processes that are seen from here are others


@pytest.mark.parametrize(
    ("reasons", "words"),
    [
        ("0x0000000000000001", []),
        ("0x0000000000000048", ["a hardware slowdown (power or temperature)", "its temperature, by hardware"]),
        ("unknown: nvidia-smi says N/A", []),
        (None, []),
    ],
)
def test_throttle_reasons_are_words(reasons, words):
    assert gpu.throttles(reasons) == words
