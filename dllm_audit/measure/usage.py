"""What a run used of its device while it decoded: the peak of its memory, and energy where a counter tells."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dllm_audit.measure.energy import EnergyReading, EnergySource, EnergyWindow
from dllm_audit.measure.memory import PeakMemory

if TYPE_CHECKING:
    import torch


class UsageMeter:
    """Measures the parts of one sitting of a run, each inside `window`."""

    def __init__(self, device: torch.device, source: EnergySource) -> None:
        self._device = device
        self._source = source
        self._memory: dict[str, Any] = {}
        self._readings: list[EnergyReading] = []
        self._open: EnergyWindow | None = None

    @contextmanager
    def window(self) -> Iterator[None]:
        """One part: everything inside counts, storing results too, since the device is on meanwhile."""
        memory = PeakMemory(self._device)
        if self._source.counter is not None:
            self._open = EnergyWindow(self._source.counter)
        try:
            yield
        finally:
            if self._open is not None:
                self._readings.append(self._open.close())
                self._open = None
            self._keep(memory.read())

    def look(self) -> None:
        """Between two results, outside every clock: see `EnergyWindow.look`."""
        if self._open is not None:
            self._open.look()

    def as_dict(self) -> dict[str, Any]:
        """Plain values for the manifest. energy.joules: None where it is not known, with the reason."""
        if self._source.counter is None:
            return {**self._memory, "energy": {"joules": None, "reason": self._source.reason}}
        why = next((r.reason for r in self._readings if r.joules is None), "" if self._readings else "nothing was run")
        energy = {
            "joules": None if why else sum(r.joules or 0.0 for r in self._readings),
            "seconds": sum(r.seconds for r in self._readings),
            "counter": self._source.counter.name,
            "idle_watts": self._source.idle_watts,
            **({"reason": why} if why else {}),
        }
        return {**self._memory, "energy": energy}

    def _keep(self, found: dict[str, Any]) -> None:
        """Of several parts the highest peak."""
        for name, value in found.items():
            before = self._memory.get(name)
            self._memory[name] = max(before, value) if isinstance(before, int) else value
