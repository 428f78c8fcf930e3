"""What a decoder must know of a model, and nothing more. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelTraits:
    """attention: "bidirectional", "block" (block-causal on an absolute grid of `block_length`) or "causal".

    shift: 1 when the logits at a position predict the next position, 0 when they predict the position itself.
    mask_token_id: None where the model has no mask. end_token_ids: ids that end an answer.
    max_positions: the longest canvas (prompt, window and suffix) the model was configured for.
    """

    family: str
    attention: str
    shift: int
    vocab_size: int
    max_positions: int
    mask_token_id: int | None = None
    end_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    block_length: int | None = None

    @property
    def kind(self) -> str:
        """ "diffusion" or "autoregressive"."""
        return "autoregressive" if self.attention == "causal" else "diffusion"
