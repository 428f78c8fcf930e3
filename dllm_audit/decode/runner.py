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
        self._plan: tuple[Tensor | None, Tensor | slice, bool, int, slice | None] = (
            None,
            slice(0),
            True,
            0,
            None,
        )

    def plan(
        self,
        slots: Tensor | None,
        columns: Tensor | slice,
        from_start: bool,
        visible: int,
        slot: slice | None,
    ) -> None:
        """slots: int64 [B] or None for one row given by `slot`; columns: int64 [B, W], or a slice for one row.

        As many slots as the buffer has rows must be all of them in order: then it is read in place.
        """
        self._plan = (slots, columns, from_start, visible, slot)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        keys, values = self.buffer[layer_idx]
        slots, columns, from_start, visible, slot = self._plan
        if slots is None:
            keys[slot, :, columns] = key_states
            values[slot, :, columns] = value_states
            if from_start:
                return key_states, value_states
            return keys[slot, :, :visible], values[slot, :, :visible]
        keys[slots[:, None], :, columns] = key_states.transpose(1, 2)
        values[slots[:, None], :, columns] = value_states.transpose(1, 2)
        if from_start:
            return key_states, value_states
        keys, values = keys[:, :, :visible], values[:, :, :visible]
        if len(slots) == keys.shape[0]:
            return keys, values
        return keys[slots], values[slots]

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        _, _, from_start, visible, _ = self._plan
        return (query_length if from_start else visible), 0

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
    Rows must be in ascending slot order; a batch that holds every slot reads the key-value buffer without a copy.
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
            self.key_values.plan(None, columns, _self_contained(window), window.visible, at)
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
            self.key_values.plan(at, columns, from_start, widest, None)
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
