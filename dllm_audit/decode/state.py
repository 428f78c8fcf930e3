"""What a running decode knows: one canvas of tokens for all rows, and per row where it stands.

Column c of a row is position c of its text, so positions have no gap and rows of unequal length share one canvas; what
lies beyond a row's length is never visible to it. "Prompt, then masks" is one way to fill a canvas, infilling between a
prompt and a suffix is another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from dllm_audit.decode.cache import RowShape, Window
from dllm_audit.decode.order import Span
from dllm_audit.records import Commit, Forward

if TYPE_CHECKING:
    from torch import Generator, Tensor, device


@dataclass
class Canvas:
    """tokens: int64 [S, L+1]; editable: bool [S, L+1], positions that the decoder may still decide; S rows, L columns.

    given: bool [S, L+1], what the caller gave (hidden in the unconditional half of classifier-free guidance).
    The last column belongs to no row: whatever a padded query would write lands there.
    """

    tokens: Tensor
    editable: Tensor
    given: Tensor

    BYTES_PER_COLUMN: ClassVar[int] = 8 + 1 + 1

    @staticmethod
    def empty(rows: int, length: int, on: device) -> Canvas:
        import torch

        shape = (rows, length + 1)
        return Canvas(
            torch.zeros(shape, dtype=torch.int64, device=on),
            torch.zeros(shape, dtype=torch.bool, device=on),
            torch.zeros(shape, dtype=torch.bool, device=on),
        )

    @property
    def dump(self) -> int:
        """The column that belongs to no row."""
        return self.tokens.shape[1] - 1

    def fill(self, slot: int, row: RowInput, mask_token_id: int | None, edit_prompt_masks: bool) -> None:
        """Write a new row into `slot`: prompt, masks, suffix."""
        import torch

        start, end = len(row.prompt_ids), len(row.prompt_ids) + row.gen_length
        blank = 0 if mask_token_id is None else mask_token_id
        ids = [*row.prompt_ids, *[blank] * row.gen_length, *row.suffix_ids]
        tokens = torch.tensor(ids, dtype=torch.int64)
        editable = torch.zeros(len(ids), dtype=torch.bool)
        editable[start:end] = True
        if edit_prompt_masks and mask_token_id is not None:
            editable[:start] = tokens[:start] == mask_token_id
        self.editable[slot] = False
        self.given[slot] = False
        self.tokens[slot, : len(ids)] = tokens.to(self.tokens.device)
        self.editable[slot, : len(ids)] = editable.to(self.tokens.device)
        self.given[slot, : len(ids)] = ~editable.to(self.tokens.device)

    def move(self, source: int, target: int) -> None:
        """Copy row `source` over row `target`."""
        for part in (self.tokens, self.editable, self.given):
            part[target] = part[source]


@dataclass(frozen=True)
class RowInput:
    """Token ids of one request and the length of its window."""

    prompt_ids: tuple[int, ...]
    gen_length: int
    suffix_ids: tuple[int, ...] = ()

    @property
    def length(self) -> int:
        """Columns that the row occupies."""
        return len(self.prompt_ids) + self.gen_length + len(self.suffix_ids)


@dataclass
class Row:
    """One request in flight. The host's side of it: where it stands and what it has cost so far."""

    id: str
    slot: int
    shape: RowShape
    blocks: Sequence[Span]
    generator: Generator | None
    traced: bool
    closes: Callable[[Sequence[int], int], bool] | None = None
    #: Tokens of the blocks that are closed, as they were then; kept where stop strings are looked for.
    closed: list[int] = field(default_factory=list)
    #: The token that the last step committed, where it had one position to decide.
    newest: int | None = None
    block: int = 0
    pending: Window | None = None
    quotas: tuple[float, ...] = ()
    step: int = 0
    planned_steps: int = 0
    open_positions: int = 0
    guaranteed: int = 0
    decoded_to: int = 0
    forwards: dict[str, int] = field(default_factory=dict)
    committing_forwards: int = 0
    query_positions: int = 0
    first_committed: bool = False
    stop: str | None = None
    trace_forwards: list[Forward] = field(default_factory=list)
    trace_commits: list[Commit] = field(default_factory=list)

    @property
    def span(self) -> Span:
        """The block that is being decoded."""
        return self.blocks[self.block]

    def count(self, window: Window, extra_kind: str | None = None) -> None:
        """Book one forward of this row."""
        width = window.hi - window.lo
        for kind in (window.kind, extra_kind):
            if kind is None:
                continue
            self.forwards[kind] = self.forwards.get(kind, 0) + 1
            self.query_positions += width
            if self.traced:
                self.trace_forwards.append(Forward(kind, width, self.block))
        if window.may_commit:
            self.committing_forwards += 1
