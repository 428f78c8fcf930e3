"""How fast this device reads memory and multiplies matrices, measured in about a second: the two roofs of the roofline.

The fastest pass counts, because a bound on time must not rest on a pass that something disturbed. What other passes
reached is given beside it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import TYPE_CHECKING, Any

from dllm_audit.errors import AuditError
from dllm_audit.measure.clock import Timer, timer_for
from dllm_audit.measure.memory import available_memory
from dllm_audit.measure.roofline import DeviceSpeed

if TYPE_CHECKING:
    import torch

MIB = 2**20

#: The array that is read is larger than the last-level cache by this factor, so that little of it can stay there.
_CACHES = 4
_LEAST_BYTES = 128 * MIB
_LEAST_BYTES_OF_A_GPU = 1024 * MIB

#: Each kernel repeats for so long, but at least so often.
_SECONDS = 0.15
_LEAST_PASSES = 5

#: Matrices grow until one product takes this long.
_PRODUCT_SECONDS = 0.02
_SIDES = (256, 512, 1024, 2048)
_SIDES_OF_A_GPU = (2048, 4096, 8192)


def measure_device(device: torch.device, dtype: torch.dtype, name: str) -> DeviceSpeed:
    """Bandwidth of reading memory and peak of matrix products in `dtype`, with the threads that torch uses now.

    Bandwidth: an array far larger than the last-level cache is summed, and multiplied with a vector; the faster of the two
    counts. Peak: square products, of growing size until one takes 20 ms. Raises AuditError where memory is too short.
    """
    import torch

    timer = timer_for(device)
    cache = last_level_cache_bytes(device)
    try:
        with torch.inference_mode():
            size, reads = _bandwidths(device, timer, cache)
            side, products = _peaks(device, dtype, timer)
    except RuntimeError as error:
        # torch says it in a subclass of RuntimeError on a GPU, and in its words alone on a CPU.
        if "memory" not in str(error).lower():
            raise
        raise _no_room(device) from error
    threads = torch.get_num_threads()
    by = f", {threads} thread{'' if threads == 1 else 's'}" if device.type == "cpu" else ""
    return DeviceSpeed(
        name=name,
        bandwidth=max(reads),
        peak=max(products),
        status="measured",
        source=f"reading {size // MIB} MiB {len(reads)} times, multiplying {side} x {side} matrices of "
        f"{str(dtype).removeprefix('torch.')} {len(products)} times{by}",
        cache_bytes=cache,
        bandwidth_low=_lower_quartile(reads),
        peak_low=_lower_quartile(products),
    )


def _bandwidths(device: torch.device, timer: Timer, cache: int | None) -> tuple[int, list[float]]:
    """(bytes of the array, bytes/s of every pass of the faster kernel)."""
    import torch

    array = _array(device, cache)
    size = array.numel() * array.element_size()
    matrix = array.view(-1, 4096)
    vector = torch.ones(4096, device=device)
    kernels: tuple[Callable[[], Any], ...] = (array.sum, partial(torch.mv, matrix, vector))
    seconds = min((_passes(timer, kernel) for kernel in kernels), key=min)
    return size, [size / each for each in seconds]


def _array(device: torch.device, cache: int | None) -> torch.Tensor:
    """An array that takes far more than the cache, but no more than a quarter of the memory that is free."""
    import torch

    if device.type == "cuda":
        wanted, free = _LEAST_BYTES_OF_A_GPU, torch.cuda.mem_get_info(device)[0]
    else:
        wanted, free = _LEAST_BYTES, available_memory()
    size = min(max(wanted, _CACHES * (cache or 0)), free // 4)
    if size < max(2 * (cache or 0), 32 * MIB):
        raise _no_room(device)
    # `zeros` leaves pages unmapped on a CPU, and every read then hits the same one.
    return torch.full((size // 4 // 4096 * 4096,), 0.5, device=device)


def _no_room(device: torch.device) -> AuditError:
    return AuditError(
        f"There is not enough free memory on {device} to measure its bandwidth and peak: an array several times as large as "
        "its cache is needed. Free some, or take the values of a datasheet: dllm-audit roofline --device-spec NAME"
    )


def _peaks(device: torch.device, dtype: torch.dtype, timer: Timer) -> tuple[int, list[float]]:
    """(side of the matrices, FLOP/s of every product) of the size whose best product was fastest."""
    import torch

    best: tuple[int, list[float]] | None = None
    generator = torch.Generator(device).manual_seed(0)  # not the global one, from which somebody's tokens may be drawn
    for side in _SIDES if device.type == "cpu" else _SIDES_OF_A_GPU:
        left, right = (torch.randn(side, side, generator=generator, device=device).to(dtype) for _ in range(2))
        # As layers multiply: on CPUs without 16-bit units `left @ right` takes seven times as long.
        seconds = _passes(timer, partial(torch.nn.functional.linear, left, right))
        rates = [2 * side**3 / each for each in seconds]
        if best is None or max(rates) > max(best[1]):
            best = side, rates
        if min(seconds) > _PRODUCT_SECONDS:
            break
    assert best is not None
    return best


def _passes(timer: Timer, kernel: Callable[[], Any]) -> list[float]:
    """Seconds of every pass but the first, which pays for loading and allocations."""
    seconds: list[float] = []
    kernel()
    while len(seconds) < _LEAST_PASSES or sum(seconds) < _SECONDS:
        timer.settle()
        start = timer.now()
        kernel()
        stop = timer.now()
        timer.settle()
        seconds.append(timer.seconds(start, stop))
    return seconds


def _lower_quartile(values: Sequence[float]) -> float:
    return quantiles(values, n=4, method="inclusive")[0]


def last_level_cache_bytes(device: torch.device) -> int | None:
    """Size of the last-level cache: of a CPU all of those that the usable cores share, of a GPU its L2. None: unknown."""
    if device.type == "cpu":
        usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
        return _cpu_cache_bytes(Path("/sys/devices/system/cpu"), sorted(usable))
    if device.type == "cuda":
        import torch

        return int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0)) or None
    return None


def _cpu_cache_bytes(folder: Path, cores: Sequence[int]) -> int | None:
    """Sum of the distinct highest-level data caches of `cores`, as Linux describes them under `folder`."""
    found: dict[tuple[int, str], int] = {}
    for core in cores:
        levels = {}
        for index in (folder / f"cpu{core}" / "cache").glob("index*"):
            try:
                level, kind, size, shared = (
                    (index / fact).read_text(encoding="utf-8").strip()
                    for fact in ("level", "type", "size", "shared_cpu_list")
                )
            except OSError:
                continue
            amount = re.fullmatch(r"(\d+)([KMG]?)", size)
            if kind != "Instruction" and amount and level.isdigit():
                levels[int(level)] = (shared, int(amount[1]) * 1024 ** " KMG".index(amount[2] or " "))
        if levels:
            top = max(levels)
            shared, size_bytes = levels[top]
            found[top, shared] = size_bytes
    return sum(found.values()) or None
