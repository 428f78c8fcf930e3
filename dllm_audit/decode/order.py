"""Where a decoder may work now: the blocks of a row's window, left to right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Span(NamedTuple):
    """Columns `lo` to `hi` (exclusive) of a row; columns count from the first prompt token."""

    lo: int
    hi: int

    @property
    def width(self) -> int:
        return self.hi - self.lo


@dataclass(frozen=True)
class Blocks:
    """Cut the window into blocks of `block_length`; `None` means one block for the whole window.

    aligned: "prompt" counts blocks from the first position to generate (LLaDA, Fast-dLLM); "absolute" from column 0,
    so that the first block may begin with prompt tokens (block-causal models: their attention has that grid).
    """

    block_length: int | None = None
    aligned: str = "prompt"

    def spans(self, start: int, end: int) -> list[Span]:
        """Blocks that cover columns `start` to `end` (exclusive); the first and the last may be short."""
        if self.block_length is None:
            return [Span(start, end)]
        first = start if self.aligned == "prompt" else start - start % self.block_length
        edges = range(first, end, self.block_length)
        return [Span(max(lo, start), min(lo + self.block_length, end)) for lo in edges]
