"""Energy by a counter of the device: NVIDIA's for a GPU, RAPL for a CPU on Linux. Power is never sampled.

A counter counts joules since it was switched on, whatever uses the device: other processes and idling are in it. Sampled
power misses most of the time (arXiv 2312.02741), and counters tick every few to every hundred milliseconds, so a window of
less than `LEAST_SECONDS` is refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

LEAST_SECONDS = 5.0
"""Shortest window whose joules are told: fifty ticks of the slowest counter."""

_RAPL = Path("/sys/class/powercap")

#: A RAPL counter starts again from 0 after so many joules as its file says. No package draws more watts than this.
_MOST_WATTS = 1000.0


class EnergyCounter(Protocol):
    """`name`: what counts, and for what. `joules()`: since some moment; raises OSError where it cannot be read."""

    @property
    def name(self) -> str: ...

    def joules(self) -> float: ...


@dataclass(frozen=True)
class EnergySource:
    """What a device's energy is read from. counter: None where there is none, and `reason` says why and what to do.

    idle_watts: mean power over `LEAST_SECONDS` without work of ours; None where it was not measured.
    """

    counter: EnergyCounter | None
    reason: str = ""
    idle_watts: float | None = None


def find_energy_source(device: torch.device) -> EnergySource:
    """The counter of `device`, not yet read over a window."""
    if device.type == "cuda":
        return _nvml(device)
    if device.type == "cpu":
        return rapl(_RAPL)
    return EnergySource(None, f"nothing is known here that counts the energy of {device.type}")


def with_idle_power(
    source: EnergySource, sleep: Callable[[float], None] = time.sleep, clock: Callable[[], float] = time.perf_counter
) -> EnergySource:
    """The same source with its idle power, measured now: `LEAST_SECONDS` of doing nothing."""
    if source.counter is None:
        return source
    window = EnergyWindow(source.counter, clock)
    sleep(LEAST_SECONDS)
    reading = window.close(least_seconds=0.0)
    watts = None if reading.joules is None else reading.joules / reading.seconds
    return EnergySource(source.counter, source.reason, watts)


@dataclass(frozen=True)
class EnergyReading:
    """joules used in `seconds`; None where that cannot be told, and `reason` says why."""

    joules: float | None
    seconds: float
    reason: str = ""


class EnergyWindow:
    """From now until `close`: what a counter counted."""

    def __init__(self, counter: EnergyCounter, clock: Callable[[], float] = time.perf_counter) -> None:
        self._counter = counter
        self._clock = clock
        self._problem = ""
        self._joules = self._read()
        self._began = clock()

    def look(self) -> None:
        """Read the counter in between, so that one that starts again from 0 is noticed. Outside every clock."""
        self._read()

    def close(self, least_seconds: float = LEAST_SECONDS) -> EnergyReading:
        """What was used; refused for a window shorter than `least_seconds`."""
        joules, seconds = self._read(), self._clock() - self._began
        if self._problem:
            return EnergyReading(None, seconds, self._problem)
        if seconds < least_seconds:
            reason = f"the window of {seconds:.1f} s is shorter than {least_seconds:g} s, which an energy counter needs"
            return EnergyReading(None, seconds, reason)
        return EnergyReading(joules - self._joules, seconds)

    def _read(self) -> float:
        try:
            return self._counter.joules()
        except OSError as error:
            self._problem = self._problem or f"the energy counter could not be read ({error})"
            return 0.0


# -- CPU --


def rapl(folder: Path) -> EnergySource:
    """The counters of all processor packages that Linux shows under `folder`."""
    zones = []
    for zone in sorted(folder.glob("*-rapl:*")):
        # Parts of a package (cores, memory) are in it already; psys would count it twice.
        if zone.name.count(":") == 1 and _text(zone / "name").startswith("package"):
            zones.append(zone)
    if not zones:
        return EnergySource(None, f"this system shows no energy counter of its processor (RAPL) in {folder}")
    try:
        return EnergySource(RaplCounter(zones))
    except PermissionError:
        return EnergySource(
            None,
            f"the processor's energy counter may not be read by this user: allow it with "
            f"sudo chmod a+r {folder}/*-rapl:*/energy_uj",
        )
    except (OSError, ValueError) as error:
        return EnergySource(None, f"the processor's energy counter could not be read ({error})")


class RaplCounter:
    """Joules of processor packages, added up. Each counter starts again from 0 after some minutes, so read it now and then."""

    def __init__(self, zones: list[Path], clock: Callable[[], float] = time.perf_counter) -> None:
        self._zones = zones
        self._clock = clock
        self._range = [int(_text(zone / "max_energy_range_uj") or 0) for zone in zones]
        self._last = self._raw()
        self._seen = clock()
        self._total = 0

    @property
    def name(self) -> str:
        packages = ", ".join(_text(zone / "name") for zone in self._zones)
        return f"RAPL ({packages}): the processor alone, without memory and everything else"

    def joules(self) -> float:
        now, moment = self._raw(), self._clock()
        gap = moment - self._seen
        for before, after, span in zip(self._last, now, self._range, strict=True):
            if span and gap > span / 1e6 / _MOST_WATTS:
                self._last, self._seen = now, moment
                raise OSError(f"it was not looked at for {gap:.0f} s and may have started again from 0 unseen")
            self._total += after - before if after >= before else after - before + span
        self._last, self._seen = now, moment
        return self._total / 1e6

    def _raw(self) -> list[int]:
        return [int((zone / "energy_uj").read_text(encoding="ascii")) for zone in self._zones]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


# -- GPU --


def _nvml(device: torch.device) -> EnergySource:
    try:
        import pynvml
    except ImportError:
        return EnergySource(None, "nvidia-ml-py is not installed: pip install 'dllm-audit[gpu]'")
    import torch

    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    try:
        pynvml.nvmlInit()
        counter = NvmlCounter(pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid), uuid)
        counter.joules()
    except (pynvml.NVMLError, OSError) as error:
        return EnergySource(None, f"the GPU's energy counter could not be read ({error}); GPUs before Volta have none")
    return EnergySource(counter)


class NvmlCounter:
    """Joules of a whole GPU since its driver was loaded, whatever ran on it."""

    def __init__(self, nvml: Any, handle: Any, uuid: str) -> None:
        self._nvml = nvml
        self._handle = handle
        self._uuid = uuid

    @property
    def name(self) -> str:
        return f"NVML total energy of {self._uuid}: the whole GPU, whatever runs on it"

    def joules(self) -> float:
        try:
            return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) / 1e3
        except self._nvml.NVMLError as error:
            raise OSError(str(error)) from error
