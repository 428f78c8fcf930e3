"""Routers that transformers' mixture-of-experts modules do not have."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter


class BiasedRouter(Qwen3MoeTopKRouter):
    """A softmax router whose per-expert bias helps to choose and also stays in the weights of the chosen.

    Elsewhere such a bias only chooses. Source: LLaDA-MoE, modeling_lladamoe.py:681 as vendored in ZHZisZZ/dllm ca17675.
    """

    expert_bias: Tensor

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.register_buffer("expert_bias", torch.zeros(config.num_experts))

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(router logits [T, E], mixing weights [T, k], chosen experts [T, k]) of T positions."""
        logits = torch.nn.functional.linear(hidden_states.reshape(-1, self.hidden_dim), self.weight)
        shares = logits.softmax(dim=-1, dtype=torch.float32) + self.expert_bias
        weights, experts = shares.topk(self.top_k, dim=-1)
        return logits, weights.to(logits.dtype), experts


def bias_routers(module: Any) -> None:
    """Replace the router of every mixture-of-experts layer of `module` by a BiasedRouter, on the meta device."""
    for layer in module.model.layers:
        if hasattr(layer.mlp, "gate"):
            with torch.device("meta"):
                layer.mlp.gate = BiasedRouter(module.config)
