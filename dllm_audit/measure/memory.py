"""Memory of this machine: the most that something took, and how much of it this process may use."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")

#: Written there it makes the kernel forget the process's high-water mark (man 5 proc). It changes nothing else.
_FORGET_PEAK = "5"


_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")


def available_memory() -> int:
    """Bytes that this process may still take, caches of files counting as free.

    The least of what the machine has and what its control groups (a container's) grant: beyond that the system ends the
    process, however much the machine has left.
    """
    import psutil

    return min([int(psutil.virtual_memory().available), *(max(0, limit - used) for limit, used in _group_limits())])


def memory_quota() -> int | None:
    """Bytes that the control groups of this process grant it; None where there is no limit."""
    return min((limit for limit, _ in _group_limits()), default=None)


def _group_limits() -> Iterator[tuple[int, int]]:
    """(limit, bytes in use) of the control groups of this process and those around them, in both versions of Linux's."""
    try:
        lines = _OWN_GROUPS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers == "":
            root, files = _GROUPS, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            root, files = _GROUPS / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        # Inside a container its own group may be mounted as the root, whatever the path says.
        own = root / path.lstrip("/")
        for group in (own, *(parent for parent in own.parents if parent.is_relative_to(root))):
            limit, used = _number(group / files[0]), _number(group / files[1])
            # Without a limit the first version holds the largest multiple of a page.
            if limit is not None and used is not None and limit < 2**62:
                yield limit, used - (_number(group / "memory.stat", files[2]) or 0)


def _number(file: Path, name: str = "") -> int | None:
    """The number that a file holds, or of its line called `name`; None where there is none, as for "max"."""
    try:
        found = re.search(rf"^{name} ?(\d+)$", file.read_text(encoding="ascii").strip(), re.MULTILINE)
    except (OSError, UnicodeDecodeError):
        return None
    return None if found is None else int(found[1])


class PeakMemory:
    """The high-water mark from now on. Nothing is polled: allocator and kernel keep it.

    Of a GPU what torch allocated there, of a CPU what the process occupied.
    """

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
