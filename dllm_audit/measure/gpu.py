"""What nvidia-smi tells of a CUDA device: driver, clocks, power, temperature, what holds its clocks down, who else is on it."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

#: Fields of `nvidia-smi --help-query-gpu` and the facts that they become. Standing ones hold for as long as nobody sets them.
_STANDING = {
    "driver_version": "gpu_driver",
    "power.limit": "gpu_limit_watts",
    "clocks.max.sm": "gpu_max_mhz",
    "mig.mode.current": "gpu_mig_mode",
}
_READINGS = {
    "clocks.sm": "gpu_clock_sm_mhz",
    "clocks.mem": "gpu_clock_memory_mhz",
    "power.draw": "gpu_power_watts",
    "temperature.gpu": "gpu_temperature_celsius",
    "utilization.gpu": "gpu_utilization_percent",
    "clocks_throttle_reasons.active": "gpu_throttle_reasons",
}

#: Bits of the throttle reasons that mean something for timing. Source: NVIDIA's nvml.h, nvmlClocksEventReasons.
_THROTTLES = {
    0x2: "an application clock was set below the GPU's own",
    0x4: "its power limit",
    0x8: "a hardware slowdown (power or temperature)",
    0x10: "a sync boost group",
    0x20: "its temperature, by software",
    0x40: "its temperature, by hardware",
    0x80: "the power brake of the machine",
    0x100: "a display clock setting",
}


def standing_facts(device: torch.device) -> dict[str, Any]:
    """Facts of a CUDA device that hold from run to run; a value is "unknown: why" where it cannot be read."""
    return _query(device, _STANDING)


def readings(device: torch.device) -> dict[str, Any]:
    """Readings of the moment, and the number of processes of others on the device."""
    facts = _query(device, _READINGS)
    others = other_processes(device)
    facts["gpu_other_processes"] = others if isinstance(others, str) else len(others)
    return facts


def throttles(reasons: Any) -> list[str]:
    """In words what holds the clocks of a GPU down, from the number that nvidia-smi gives; idling is no such thing."""
    try:
        bits = int(str(reasons), 16)
    except ValueError:
        return []
    return [words for bit, words in _THROTTLES.items() if bits & bit]


def other_processes(device: torch.device) -> list[int] | str:
    """Ids of processes other than this one that compute on the device, as nvidia-smi numbers them; or "unknown: why"."""
    import psutil
    import torch

    try:
        listed = _smi(device, ["--query-compute-apps=pid"])
    except _NoAnswer as why:
        return f"unknown: {why}"
    found = [int(line) for line in listed.splitlines() if line.strip().isdigit()]
    others = [pid for pid in found if pid != os.getpid()]
    if others == found and not any(map(psutil.pid_exists, found)) and torch.cuda.memory_reserved(device):
        # Seen from inside a container, where this process has another number than out there: it is one of them.
        others = others[:-1]
    return others


class _NoAnswer(Exception):
    """nvidia-smi could not tell; the message says why."""


def _query(device: torch.device, fields: dict[str, str]) -> dict[str, Any]:
    wanted = dict(fields)
    while wanted:
        try:
            answer = _smi(device, [f"--query-gpu={','.join(wanted)}"])
        except _NoAnswer as why:
            # One name that this driver does not know fails them all.
            unknown = re.search(r'[Ff]ield "([\w.]+)" is not a valid field', str(why))
            if unknown is None or unknown[1] not in wanted:
                return dict.fromkeys(fields.values(), f"unknown: {why}")
            del wanted[unknown[1]]
            continue
        values = [_value(value) for value in answer.strip().split(",")]
        found = dict(zip(wanted.values(), values, strict=False))
        missing = "unknown: this nvidia-smi does not tell it"
        return {fact: found.get(fact, missing) for fact in fields.values()}
    return {}


def _value(text: str) -> Any:
    text = text.strip()
    if text.startswith("[") and text.endswith("]"):
        return f"unknown: nvidia-smi says {text[1:-1]}"
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return text


def _smi(device: torch.device, query: Sequence[str]) -> str:
    """What nvidia-smi answers about one device. By its uuid: its own numbers are not those of CUDA_VISIBLE_DEVICES."""
    import torch

    try:
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    except RuntimeError as error:  # a device that failed
        raise _NoAnswer(f"the device does not answer ({error})") from None
    command = ["nvidia-smi", f"--id={uuid}", *query, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except FileNotFoundError:
        raise _NoAnswer("nvidia-smi is not on the path; it comes with the driver") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise _NoAnswer(f"nvidia-smi did not answer ({type(error).__name__})") from None
    if done.returncode:
        said = " ".join((done.stdout + " " + done.stderr).split())[:200]
        raise _NoAnswer(f"nvidia-smi failed: {said}")
    return done.stdout
