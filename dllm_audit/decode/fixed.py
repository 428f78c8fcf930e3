"""Forwards of one fixed shape, compiled or captured once and then run with nothing but new numbers.

A cached step is always as wide as a block (one position for an autoregressive model), so its work differs between calls
only in which columns it takes and how many it may see. Those are data here: the window is gathered by index, keys are
read over the whole buffer, and what is not visible is masked. Absent rows and missing positions go to the column that
belongs to no row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import torch

from dllm_audit.decode.cache import Window
from dllm_audit.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

    from dllm_audit.decode.runner import KeyValues
    from dllm_audit.decode.state import Canvas
    from dllm_audit.models.loading import LoadedModel

#: How forwards are executed. "fixed" has the fixed shapes and neither compiles nor captures them: it is there for tests.
ENGINES = ("eager", "compile", "cudagraph", "fixed")

#: Kinds of forward whose width never changes when they use the cache.
_KINDS = ("denoise", "commit")


class FixedForwards:
    """Windows of up to `width` columns, for batches padded to a power of two of rows.

    Preparing them (compilation, capture) happens here, before any clock runs; `seconds` is what it took.
    """

    def __init__(self, model: LoadedModel, canvas: Canvas, key_values: KeyValues, width: int) -> None:
        self.model = model
        self.canvas = canvas
        self.key_values = key_values
        self.width = width
        self.rows, columns = canvas.tokens.shape
        self.arange = torch.arange(columns, device=model.device)
        self.sizes = [2**n for n in range((self.rows - 1).bit_length())] + [self.rows]
        began = time.perf_counter()
        self.numbers = {
            size: torch.tensor([(slot, *_NOBODY) for slot in range(size)], dtype=torch.int64, device=model.device)
            for size in self.sizes
        }
        self.steps = {size: self._prepared(size) for size in self.sizes}
        self.seconds = time.perf_counter() - began

    def fit(self, windows: Sequence[Window]) -> bool:
        """Whether these windows have the fixed shape."""
        return all(w.cached and w.kind in _KINDS and w.hi - w.lo <= self.width for w in windows)

    def run(self, slots: Sequence[int], windows: Sequence[Window]) -> Tensor:
        """Last hidden states, float [B', width, H] with B' >= B; overwritten by the next call."""
        size = next(size for size in self.sizes if size > slots[-1])
        # Keys and values are read in place, so each row stands at its own slot, whoever is absent.
        everyone = [(slot, *_NOBODY) for slot in range(size)]
        for slot, window in zip(slots, windows, strict=True):
            everyone[slot] = (slot, window.lo, window.hi, window.visible)
        self.numbers[size].copy_(torch.tensor(everyone, dtype=torch.int64))
        states = self.steps[size]()
        return states if slots[-1] == len(slots) - 1 else states[torch.tensor(list(slots), device=states.device)]

    def _step(self, numbers: Tensor) -> Tensor:
        slots, lo, hi, visible = numbers.unbind(dim=1)
        columns = lo[:, None] + self.arange[: self.width]
        inside = columns < hi[:, None]
        columns = torch.where(inside, columns, self.canvas.dump)
        keys = self.canvas.dump
        self.key_values.plan(range(len(numbers)), slots, columns, False, keys)
        return self.model.module.model(
            input_ids=self.canvas.tokens[slots[:, None], columns],
            position_ids=columns.masked_fill(~inside, 0),
            attention_mask=(self.arange[:keys] < visible[:, None])[:, None, None, :],
            cache=self.key_values,
            use_cache=False,
            is_causal=False,
        ).last_hidden_state

    def _prepared(self, size: int) -> Callable[[], Tensor]:
        numbers = self.numbers[size]
        if self.model.engine == "fixed":
            return lambda: self._step(numbers)
        try:
            return self._compiled(numbers) if self.model.engine == "compile" else self._captured(numbers)
        except Exception as error:  # compilers and drivers have exceptions of their own for what they cannot do
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ModelError(
                f"The forward of {self.model.source.ref} cannot run with --engine {self.model.engine}: {reason}. "
                "Use --engine eager."
            ) from error

    def _compiled(self, numbers: Tensor) -> Callable[[], Tensor]:
        # torch keeps what it compiled by the code it came from, eight of each, and runs the ninth uncompiled: each has its own.
        method = FixedForwards._step
        own = FunctionType(method.__code__.replace(), method.__globals__, method.__name__, method.__defaults__)
        step = torch.compile(MethodType(own, self), dynamic=False)
        step(numbers)
        return lambda: step(numbers)

    def _captured(self, numbers: Tensor) -> Callable[[], Tensor]:
        """A CUDA graph: three runs on a stream of its own let the allocator and the kernels settle, then one is recorded."""
        device = self.model.device
        with torch.cuda.device(device):
            stream: Any = torch.cuda.Stream(device)
            stream.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(stream):
                for _ in range(3):
                    self._step(numbers)
            torch.cuda.current_stream(device).wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                states = self._step(numbers)

        def replay() -> Tensor:
            graph.replay()
            return states

        return replay


#: Columns of a row that is not there: it takes none, and sees one that nobody reads the result of.
_NOBODY = (0, 0, 1)
