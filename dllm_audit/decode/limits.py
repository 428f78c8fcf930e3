"""Where a device's limits show: memory that runs out, a device that is gone, and how many rows fit beforehand."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch

from dllm_audit.decode.state import Canvas
from dllm_audit.measure.memory import available_memory

if TYPE_CHECKING:
    from dllm_audit.decode.recipe import Recipe
    from dllm_audit.models.loading import LoadedModel

#: What torch says where its exception has no class of its own: an allocation on a CPU, libraries on a GPU.
_NO_MEMORY = re.compile(
    r"out of memory|can'?t allocate memory|cannot allocate memory|_STATUS_ALLOC_FAILED", re.IGNORECASE
)
_NO_DEVICE = re.compile(r"\b(CUDA|HIP|XPU|MPS|NVML|CUBLAS|CUDNN)\b.*error|(CUBLAS|CUDNN)_STATUS_|device (is |was )?lost", re.IGNORECASE)  # fmt: skip


class Fault(NamedTuple):
    """kind: memory that ran out, after which smaller work goes on; or a device on which nothing runs any more."""

    kind: Literal["memory", "device"]
    words: str


def fault_of(error: BaseException) -> Fault | None:
    """What the machine refused, if that is what `error` says; None for anything else, such as a bug of ours."""
    words = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or _NO_MEMORY.search(str(error)):
        return Fault("memory", words)
    if isinstance(error, torch.AcceleratorError) or (isinstance(error, RuntimeError) and _NO_DEVICE.search(words)):
        return Fault("device", words)
    return None if error.__cause__ is None else fault_of(error.__cause__)


def row_bytes(model: LoadedModel, recipe: Recipe, length: int) -> int:
    """Bytes that a row of `length` columns occupies for as long as it is in flight: its canvas, keys and values.

    Keys and values count 0 for a network whose sizes are not known.
    """
    dimensions = model.dimensions
    cached = 0 if dimensions is None or recipe.cache.name == "none" else dimensions.kv_elements * model.dtype.itemsize
    return (length + 1) * (cached + Canvas.BYTES_PER_COLUMN)


def rows_that_fit(model: LoadedModel, recipe: Recipe, rows: int, length: int) -> int:
    """`rows`, halved until they fit into the memory that is free; at least 1.

    On a CPU alone: there an allocation succeeds that is never met by memory, and the system then ends the process. A GPU
    refuses it.
    """
    if model.device.type != "cpu":
        return rows
    free, each = available_memory(), row_bytes(model, recipe, length)
    while rows > 1 and rows * each > free:
        rows //= 2
    return rows
