"""Runs one forward pass for several rows: gathers their windows, keeps keys and values, computes logits where asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from transformers import Cache

from dllm_audit.decode.cache import Window
from dllm_audit.decode.fixed import FixedForwards

if TYPE_CHECKING:
    from torch import Tensor

    from dllm_audit.decode.state import Canvas
    from dllm_audit.models.loading import LoadedModel


class _Plan(NamedTuple):
    """lines: int64 [B * heads * W], where keys are written in a layer's buffer; None for one row, written at `columns`.

    rows: whose keys are seen; of a slice they are read in place, of others they are copied.
    """

    lines: Tensor | None = None
    columns: Tensor | slice = slice(0)
    rows: Tensor | slice = slice(0)
    alone: bool = True
    visible: int = 0


class KeyValues(Cache):
    """Keys and values of all rows in one static buffer per layer, [S, heads, L+1, head_dim].

    Before each forward `plan` says which columns the window fills and how many are visible. A window that holds
    every visible column attends to itself alone; any other attends to the buffer.
    """

    def __init__(self, rows: int, length: int, module: Any, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(layers=[])
        config = module.config
        heads = config.num_key_value_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (config.num_hidden_layers, 2, rows, heads, length + 1, width)
        self.buffer = torch.zeros(shape, device=device, dtype=dtype)
        # Views made once: making them costs as much as what is done with them where a forward is short.
        self._layers = [(both, *both.view(2, -1, width).unbind(0)) for both in self.buffer.unbind(0)]
        #: Where the lines of each row and head begin, [rows, heads, 1], when the buffer of a layer is seen as lines.
        self._lines = torch.arange(0, rows * heads * (length + 1), length + 1, device=device).view(rows, heads, 1)
        self._plan = _Plan()

    def plan(self, slots: Sequence[int], at: Tensor | None, columns: Tensor | slice, alone: bool, visible: int) -> None:
        """Say where the next forward writes, and what it sees.

        slots: of its rows, ascending; at: the same as int64 [B], or None for one row, whose columns are a slice.
        columns: int64 [B, W]. alone: every window sees itself and nothing else; visible: columns that are seen otherwise.
        """
        rows: Tensor | slice = slice(slots[0], slots[0] + len(slots))
        if at is not None and slots[-1] - slots[0] + 1 > len(slots):
            rows = at
        lines = None
        if not isinstance(columns, slice):
            lines = (self._lines[rows] + columns[:, None]).reshape(-1)
        self._plan = _Plan(lines, columns, rows, alone, visible)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        both, keys, values = self._layers[layer_idx]
        plan = self._plan
        if plan.lines is None:
            into_keys, into_values = both[:, plan.rows, :, plan.columns].unbind(0)
            into_keys.copy_(key_states)
            into_values.copy_(value_states)
        else:
            width = keys.shape[-1]
            keys.index_copy_(0, plan.lines, key_states.reshape(-1, width))
            values.index_copy_(0, plan.lines, value_states.reshape(-1, width))
        if plan.alone:
            return key_states, value_states
        seen_keys, seen_values = both[:, plan.rows, :, : plan.visible].unbind(0)
        return seen_keys, seen_values

    def move(self, source: int, target: int) -> None:
        """Copy what is remembered of row `source` over that of `target`."""
        self.buffer[:, :, target] = self.buffer[:, :, source]

    def forget(self, row: int) -> None:
        """Take out what is remembered of a row: what is not finite weighs in attention even where it is masked."""
        self.buffer[:, :, row] = 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return (query_length if self._plan.alone else self._plan.visible), 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return 0


def _self_contained(window: Window) -> bool:
    """Whether a window holds every key that it may see."""
    return window.lo == 0 and window.hi == window.visible


class Hidden(NamedTuple):
    """states: float [B, W, H], the last hidden states of a window; unconditional: the same without the prompt, or None."""

    states: Tensor
    unconditional: Tensor | None


class ForwardRunner:
    """Runs windows of up to `rows` rows of up to `length` columns through one model.

    width: of the cached steps where it never changes, which the model's engine may compile or capture; else None.
    Rows must be in ascending slot order; a batch of neighbours reads the key-value buffer without a copy.
    """

    def __init__(self, model: LoadedModel, canvas: Canvas, cached: bool, width: int | None = None) -> None:
        self.model = model
        self.canvas = canvas
        rows, columns = canvas.tokens.shape
        device = model.device
        self.arange = torch.arange(columns, device=device)
        self.key_values = KeyValues(rows, columns - 1, model.module, device, model.dtype) if cached else None
        self.fixed: FixedForwards | None = None
        if self.key_values is not None and width is not None and model.engine != "eager":
            self.fixed = FixedForwards(model, canvas, self.key_values, width)

    def run(self, slots: Sequence[int], windows: Sequence[Window], mask_given: int | None = None) -> Hidden:
        """One forward over `windows`, one per row of `slots`, all of one kind and attention.

        mask_given: with classifier-free guidance, the mask id that hides the prompt in a second half of the batch.
        """
        if self.fixed is not None and self.fixed.fit(windows):
            return Hidden(self.fixed.run(slots, windows), None)
        if len(slots) == 1:
            tokens, positions, mask = self._one_row(slots[0], windows[0])
        else:
            tokens, positions, mask = self._many_rows(slots, windows)
        causal = windows[0].attention == "causal"
        if windows[0].attention == "block":
            mask = self._block_causal(tokens.shape[1])
        if mask_given is not None:
            return self._guided(tokens, positions, mask, slots, windows, mask_given)
        states = self.model.module.model(
            input_ids=tokens,
            position_ids=positions,
            attention_mask=mask,
            cache=self.key_values if windows[0].cached else None,
            use_cache=False,
            is_causal=causal,
        ).last_hidden_state
        return Hidden(states, None)

    def logits(self, hidden: Hidden, row: Tensor, index: Tensor, cfg_scale: float) -> Tensor:
        """Logits, float [N, V], at window index `index` [N] of batch row `row` [N]."""
        head = self.model.module.lm_head
        logits = head(hidden.states[row, index])
        if hidden.unconditional is None:
            return logits
        without = head(hidden.unconditional[row, index])
        return without + (cfg_scale + 1) * (logits - without)

    def _one_row(self, slot: int, window: Window) -> tuple[Tensor, Tensor, None]:
        at = slice(slot, slot + 1)
        columns = slice(window.lo, window.hi)
        if window.cached:
            assert self.key_values is not None
            self.key_values.plan([slot], None, columns, _self_contained(window), window.visible)
        return self.canvas.tokens[at, columns], self.arange[None, columns], None

    def _many_rows(self, slots: Sequence[int], windows: Sequence[Window]) -> tuple[Tensor, Tensor, Tensor | None]:
        device = self.arange.device
        numbers = torch.tensor([[s, w.lo, w.hi, w.visible] for s, w in zip(slots, windows, strict=True)], device=device)
        at, lo, hi, visible = numbers.unbind(dim=1)
        width = max(w.hi - w.lo for w in windows)
        columns = lo[:, None] + self.arange[:width]
        inside = columns < hi[:, None]
        ragged = any(w.hi - w.lo != width for w in windows)
        if ragged:
            columns = torch.where(inside, columns, self.canvas.dump)
        tokens = self.canvas.tokens[at[:, None], columns]
        positions = columns.masked_fill(~inside, 0) if ragged else columns
        widest = max(w.visible for w in windows)
        from_start = all(_self_contained(w) for w in windows)
        if windows[0].cached:
            assert self.key_values is not None
            self.key_values.plan(slots, at, columns, from_start, widest)
        keys = width if from_start else widest
        if all(w.visible == keys for w in windows) or windows[0].attention == "causal":
            # Causal windows start at column 0 with padding on the right, which no earlier query can see.
            return tokens, positions, None
        return tokens, positions, (self.arange[:keys] < visible[:, None])[:, None, None, :]

    def _block_causal(self, width: int) -> Tensor:
        grid = self.model.traits.block_length
        assert grid is not None
        block = self.arange[:width] // grid
        return (block[:, None] >= block[None, :])[None, None]

    def _guided(
        self,
        tokens: Tensor,
        positions: Tensor,
        mask: Tensor | None,
        slots: Sequence[int],
        windows: Sequence[Window],
        mask_given: int,
    ) -> Hidden:
        """Classifier-free guidance: the batch once as it is and once with everything given masked, in one forward."""
        width = tokens.shape[1]
        at = torch.tensor(list(slots), device=tokens.device)
        hidden_prompt = torch.where(self.canvas.given[at, :width], mask_given, tokens)
        states = self.model.module.model(
            input_ids=torch.cat([tokens, hidden_prompt]),
            position_ids=torch.cat([positions, positions]) if positions.shape[0] > 1 else positions,
            attention_mask=None if mask is None else torch.cat([mask, mask]),
            use_cache=False,
            is_causal=False,
        ).last_hidden_state
        conditional, unconditional = states.chunk(2)
        return Hidden(conditional, unconditional)
