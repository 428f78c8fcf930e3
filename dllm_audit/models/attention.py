"""Attention of grouped heads under a mask, without copies of the keys."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

#: The name under which transformers finds `packed_attention`.
PACKED = "sdpa_packed"


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """transformers' "sdpa", but where heads share keys and a mask is the same for all queries of a row, their queries line up
    behind one another as those of one head. transformers repeats the keys for every head there.

    query: [B, heads, W, D]; key, value: [B, key-value heads, K, D]; attention_mask: bool [B, 1, 1, K] or any other.
    Returns [B, W, heads, D].
    """
    batch, heads, width, depth = query.shape
    shared = key.shape[1]
    if heads == shared or attention_mask is None or attention_mask.shape[1:3] != (1, 1):
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    packed = query.reshape(batch, shared, heads // shared * width, depth)
    found = F.scaled_dot_product_attention(packed, key, value, attn_mask=attention_mask, scale=scaling)
    return found.reshape(batch, heads, width, -1).transpose(1, 2).contiguous(), None


def register_attention() -> str:
    """Make `packed_attention` known to transformers; returns its name."""
    AttentionInterface.register(PACKED, packed_attention)
    AttentionMaskInterface.register(PACKED, sdpa_mask)
    return PACKED
