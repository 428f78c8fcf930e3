"""Which positions are computed, and which are remembered as keys and values.

A policy plans windows: which columns of a row are fed to the model, and what they may look at. It never touches tensors.
Every policy plans at most one forward when a row begins (`begin`), one when a block opens (`open_block`), one per
denoising step (`step`) and one when a block closes (`close_block`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from dllm_audit.decode.order import Span


@dataclass(frozen=True)
class Window:
    """One row's part of a forward pass.

    kind: kind of forward (see records.FORWARD_KINDS). lo, hi: columns fed to the model.
    visible: columns 0 to `visible` (exclusive) are keys. may_commit: its logits may commit tokens.
    first_only: they decide the first position of the block alone.
    attention: "full" over the visible columns, "causal", or "block" (block-causal on the absolute grid).
    cached: keys and values of earlier forwards are used and this window's are kept.
    """

    kind: str
    lo: int
    hi: int
    visible: int
    may_commit: bool = True
    attention: str = "full"
    cached: bool = True
    first_only: bool = False


@dataclass(frozen=True)
class RowShape:
    """Columns of a row: prompt before `start`, window `start` to `end`, suffix up to `length`.

    shift: 1 when the logits at a column predict the next column (Dream, autoregressive models), else 0.
    grid: block length of a block-causal model's attention, or None.
    """

    start: int
    end: int
    length: int
    shift: int = 0
    grid: int | None = None


class CachePolicy(Protocol):
    """How a decoder uses keys and values. `attention`: what the model must have been trained with."""

    @property
    def name(self) -> str: ...

    @property
    def attention(self) -> str: ...

    @property
    def supports_suffix(self) -> bool: ...

    def fixed_width(self, block_length: int | None, shift: int, grid: int | None) -> int | None:
        """Columns of the widest step where every step can be padded to it at no cost worth mentioning, else None."""

    def begin(self, row: RowShape) -> Window | None: ...

    def open_block(self, row: RowShape, block: Span) -> Window | None: ...

    def step(self, row: RowShape, block: Span) -> Window: ...

    def close_block(self, row: RowShape, block: Span) -> Window | None: ...


@dataclass(frozen=True)
class NoCache:
    """Every step recomputes every position of the canvas (LLaDA, arXiv 2502.09992, section 2.4)."""

    name: str = "none"
    attention: str = "bidirectional"
    supports_suffix: bool = True

    def fixed_width(self, block_length: int | None, shift: int, grid: int | None) -> int | None:
        return None

    def begin(self, row: RowShape) -> Window | None:
        return None

    def open_block(self, row: RowShape, block: Span) -> Window | None:
        return None

    def step(self, row: RowShape, block: Span) -> Window:
        return Window("denoise", 0, row.length, row.length, cached=False)

    def close_block(self, row: RowShape, block: Span) -> Window | None:
        return None


@dataclass(frozen=True)
class _Refreshed:
    """A full forward at every block start, which also commits; its keys are from before those commits.

    A model whose head is shifted predicts the block's first token from the position before it, so its steps feed that
    position too. first_alone: reproduces NVlabs/Fast-dLLM a9b81e4, v1/dream/model/generation_utils_block.py:517, which
    feeds the block only and therefore lets the refresh commit the first token of the block, whatever its confidence.
    """

    attention: str = "bidirectional"
    supports_suffix: bool = True
    first_alone: bool = False

    def begin(self, row: RowShape) -> Window | None:
        return None

    def open_block(self, row: RowShape, block: Span) -> Window | None:
        return Window("refresh", 0, row.length, row.length, first_only=self.first_alone)

    def _step_from(self, row: RowShape, block: Span) -> int:
        return block.lo if self.first_alone else max(0, block.lo - row.shift)

    def close_block(self, row: RowShape, block: Span) -> Window | None:
        return None


@dataclass(frozen=True)
class PrefixCache(_Refreshed):
    """Remember what stands before the block; recompute the block and all that follows (Fast-dLLM, arXiv 2505.22618, 3.2)."""

    name: str = "prefix"

    def fixed_width(self, block_length: int | None, shift: int, grid: int | None) -> int | None:
        return None

    def step(self, row: RowShape, block: Span) -> Window:
        return Window("denoise", self._step_from(row, block), row.length, row.length)


@dataclass(frozen=True)
class DualCache(_Refreshed):
    """Remember prefix and suffix; recompute the block alone, the suffix staying as it was at the block's start.

    Source: Fast-dLLM, arXiv 2505.22618, section 3.2 (DualCache).
    """

    name: str = "dual"

    def fixed_width(self, block_length: int | None, shift: int, grid: int | None) -> int | None:
        return None if block_length is None else block_length + (0 if self.first_alone else shift)

    def step(self, row: RowShape, block: Span) -> Window:
        return Window("denoise", self._step_from(row, block), block.hi, row.length)


@dataclass(frozen=True)
class BlockExactCache:
    """Exact keys of finished blocks, for models trained with block-causal attention (BD3-LM, arXiv 2503.09573).

    A finished block costs one forward that writes its keys and commits nothing (kind `commit`); the last block of a
    request needs none. The prompt's complete blocks are written by one prefill.
    """

    name: str = "block"
    attention: str = "block"
    supports_suffix: bool = False

    def fixed_width(self, block_length: int | None, shift: int, grid: int | None) -> int | None:
        return grid

    def _grid_start(self, row: RowShape, column: int) -> int:
        assert row.grid is not None
        return column - column % row.grid

    def begin(self, row: RowShape) -> Window | None:
        hi = self._grid_start(row, row.start)
        return Window("prefill", 0, hi, hi, may_commit=False, attention="block") if hi else None

    def open_block(self, row: RowShape, block: Span) -> Window | None:
        return None

    def step(self, row: RowShape, block: Span) -> Window:
        return Window("denoise", self._grid_start(row, block.lo), block.hi, block.hi)

    def close_block(self, row: RowShape, block: Span) -> Window | None:
        if block.hi == row.end:
            return None
        return Window("commit", self._grid_start(row, block.lo), block.hi, block.hi, may_commit=False)


@dataclass(frozen=True)
class CausalCache:
    """The ordinary key-value cache of an autoregressive model: prefill once, then one new position per forward.

    The prefill yields the first token and the last token is never fed.
    """

    name: str = "causal"
    attention: str = "causal"
    supports_suffix: bool = False

    def fixed_width(self, block_length: int | None, shift: int, grid: int | None) -> int | None:
        return 1

    def begin(self, row: RowShape) -> Window | None:
        return Window("prefill", 0, row.start, row.start, attention="causal")

    def open_block(self, row: RowShape, block: Span) -> Window | None:
        return None

    def step(self, row: RowShape, block: Span) -> Window:
        return Window("denoise", block.lo - 1, block.lo, block.lo)

    def close_block(self, row: RowShape, block: Span) -> Window | None:
        return None
