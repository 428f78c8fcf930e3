"""Which positions compete in a forward, and what becomes of them.

Whatever is known before the forward is prepared before it; what it decided is read back in one go for all its rows, so
that after a forward a device is waited for once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from dllm_audit.decode.cache import Window
from dllm_audit.decode.order import Span

if TYPE_CHECKING:
    from torch import Tensor

    from dllm_audit.decode.state import Canvas, Row


class Outcome(NamedTuple):
    """What a forward did to one row.

    committed: tokens; within: of them inside the row's block. least: the lowest confidence of those committed; no number
    that means anything where none was. first_final: whether the first answer position is final; None where it was before.
    token: the committed id where a row has one position to decide, else None.
    """

    committed: int
    within: int
    least: float
    first_final: bool | None
    token: int | None


@dataclass(frozen=True)
class Candidates:
    """The positions of B rows that one forward may decide, W columns a row.

    at: what a canvas tensor is indexed with to get them, [B, W]. columns: int64 [B, W]. open: bool [B, W], still undecided
    and inside the row's span. row, column: int64 [N], where `open` is true; index: int64 [N], where in the row's window the
    hidden state of each stands. alone: every row has one column, and it is open.
    """

    canvas: Canvas
    rows: Sequence[Row]
    spans: Sequence[Span]
    at: tuple[Tensor | slice, Tensor | slice]
    columns: Tensor
    open: Tensor
    row: Tensor
    column: Tensor
    index: Tensor
    alone: bool

    @staticmethod
    def of(
        canvas: Canvas,
        arange: Tensor,
        rows: Sequence[Row],
        windows: Sequence[Window],
        spans: Sequence[Span],
        shift: int,
    ) -> Candidates:
        """spans: the columns that compete, a row each. shift: see `ModelTraits`. arange: int64, as many as there are columns."""
        alone = all(s.width == 1 == r.open_positions for r, s in zip(rows, spans, strict=True))
        at: tuple[Tensor | slice, Tensor | slice]
        if len(rows) == 1:
            slot, span = rows[0].slot, spans[0]
            at = slice(slot, slot + 1), slice(span.lo, span.hi)
            columns = arange[None, span.lo : span.hi]
            inside = columns - (windows[0].lo + shift)
        else:
            numbers = torch.tensor(
                [[r.slot, s.lo, s.hi, w.lo + shift] for r, s, w in zip(rows, spans, windows, strict=True)],
                device=arange.device,
            )
            slots, lo, hi, lows = numbers[:, :, None].unbind(dim=1)
            columns = lo
            if not alone:
                columns = lo + arange[: max(s.width for s in spans)]
                columns = torch.where(columns < hi, columns, canvas.dump)
            at = slots, columns
            inside = columns - lows
        free = canvas.editable[at]
        if alone:
            row, column, index = arange[: len(rows)], arange[:1].expand(len(rows)), inside[:, 0]
        else:
            row, column = free.nonzero(as_tuple=True)
            index = inside[row, column]
        return Candidates(canvas, rows, spans, at, columns, free, row, column, index, alone)

    def counts(self) -> list[int]:
        """How many candidates each row has."""
        return [1] * len(self.rows) if self.alone else self.open.sum(dim=1).tolist()

    def spread(self, values: Tensor, blank: float) -> Tensor:
        """One value per candidate, [N], as [B, W] with `blank` where there is none."""
        if self.alone:
            return values[:, None]
        spread = values.new_full(self.open.shape, blank)
        spread[self.row, self.column] = values
        return spread

    def commit(self, chosen: Tensor, token: Tensor, confidence: Tensor) -> list[Outcome]:
        """Write the tokens where `chosen`, bool [B, W], and read back what that did; token, confidence: [B, W].

        Only candidates can be chosen, whatever a policy says.
        """
        if not self.alone:
            chosen = chosen & self.open
        before = self.canvas.tokens[self.at]
        left = self.open ^ chosen
        self.canvas.tokens[self.at] = torch.where(chosen, token, before)
        self.canvas.editable[self.at] = left
        if self.alone:
            number, least = chosen[:, 0], confidence[:, 0]
        else:
            number, least = chosen.sum(dim=1), torch.where(chosen, confidence, float("inf")).amin(dim=1)
        facts = [number, least]
        reaches = not self.alone and any(s.lo < r.span.lo for r, s in zip(self.rows, self.spans, strict=True))
        if reaches:
            block = torch.tensor([[r.span.lo] for r in self.rows], device=number.device)
            facts.append((chosen & (self.columns >= block)).sum(dim=1))
        first = self._first_columns()
        looks = any(place is not None for place in first)
        if looks:
            place = torch.tensor([[place or 0] for place in first], device=number.device)
            facts.append(~left.gather(1, place)[:, 0])
        if self.alone:
            facts.append(token[:, 0])
        # float32 holds counts and ids exactly, and every device has it.
        read = iter(torch.stack([fact.float() for fact in facts]).tolist())
        committed, least = [int(number) for number in next(read)], next(read)
        within = [int(number) for number in next(read)] if reaches else committed
        final: list[bool | None] = [None] * len(first)
        if looks:
            final = [None if place is None else bool(fact) for place, fact in zip(first, next(read), strict=True)]
        tokens: list[int | None] = [int(id) for id in next(read)] if self.alone else [None] * len(first)
        return list(map(Outcome, committed, within, least, final, tokens))

    def _first_columns(self) -> list[int | None]:
        """Where among a row's candidates its first answer position stands; None where that is final or not among them."""
        return [
            None if r.first_committed or not s.lo <= r.shape.start < s.hi else r.shape.start - s.lo
            for r, s in zip(self.rows, self.spans, strict=True)
        ]
