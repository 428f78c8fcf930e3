"""The most memory that something took: of a GPU what torch allocated there, of a CPU what the process occupied."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")

#: Written there it makes the kernel forget the process's high-water mark (man 5 proc). It changes nothing else.
_FORGET_PEAK = "5"


class PeakMemory:
    """The high-water mark from now on. Nothing is polled: allocator and kernel keep it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._since = "since the first request"
        if device.type == "cuda":
            import torch

            torch.cuda.reset_peak_memory_stats(device)
        elif not _forget_peak():
            self._since = "since the process began"

    def read(self) -> dict[str, Any]:
        """peak_device_memory_bytes or peak_process_memory_bytes, and peak_memory_of: what was read, since when.

        Without a number where this system does not tell; peak_memory_of then says why.
        """
        if self._device.type == "cuda":
            import torch

            peak = torch.cuda.max_memory_allocated(self._device)
            return {
                "peak_device_memory_bytes": int(peak),
                "peak_memory_of": f"torch.cuda.max_memory_allocated, {self._since}",
            }
        mark = _high_water_mark()
        if mark is not None:
            return {"peak_process_memory_bytes": mark, "peak_memory_of": f"VmHWM of the process, {self._since}"}
        try:
            import resource
        except ImportError:
            return {"peak_memory_of": "unknown: this system does not tell the peak of a process"}
        # Kilobytes everywhere but on macOS.
        unit = 1 if sys.platform == "darwin" else 1024
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        return {"peak_process_memory_bytes": peak, "peak_memory_of": "ru_maxrss of the process, since it began"}


def _forget_peak() -> bool:
    """Start the high-water mark of the process again from what it occupies now. False where the kernel does not let us."""
    try:
        _CLEAR.write_text(_FORGET_PEAK, encoding="ascii")
    except OSError:
        return False
    mark, now = _high_water_mark(), _status("VmRSS")
    # Some kernels accept the write and forget nothing. Pages come and go, so the two need not be equal.
    return mark is not None and now is not None and mark <= 1.05 * now


def _high_water_mark() -> int | None:
    return _status("VmHWM")


def _status(name: str) -> int | None:
    """Bytes of a line of the process's status; None where Linux's is not there."""
    try:
        found = re.search(rf"^{name}:\s+(\d+) kB", _STATUS.read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        return None
    return None if found is None else int(found[1]) * 1024
