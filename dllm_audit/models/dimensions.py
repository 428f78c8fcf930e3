"""The sizes of a network that decide what a forward pass reads and multiplies. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any


@dataclass(frozen=True)
class Dimensions:
    """Parameters by what a forward does with them, and the shape of attention. Counts.

    body: multiplied with every position; experts and the vocabulary head left out.
    head: multiplied with the positions whose logits are computed.
    embedding: looked up and never multiplied; 0 where the head shares it. hidden: of it read for each position.
    experts: of all experts of all layers; each position is multiplied with `experts_per_token` of `expert_count` a layer.
    layers, heads, kv_heads, head_dim: of attention. All 0: attention is left out.
    """

    body: float
    head: float = 0
    embedding: float = 0
    hidden: int = 0
    vocab: int = 0
    experts: float = 0
    expert_count: int = 0
    experts_per_token: int = 0
    layers: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0

    @property
    def parameters(self) -> float:
        """All of them: what has to be in memory."""
        return self.body + self.head + self.embedding + self.experts

    @property
    def chosen_experts(self) -> float:
        """Expert parameters that one position is multiplied with."""
        return self.experts * self.experts_per_token / self.expert_count if self.expert_count else 0.0

    @property
    def active(self) -> float:
        """Parameters that one position is multiplied with, its logits included."""
        return self.body + self.head + self.chosen_experts

    @property
    def kv_elements(self) -> int:
        """Numbers that keys and values of one column take, all layers together."""
        return 2 * self.layers * self.kv_heads * self.head_dim

    def as_dict(self) -> dict[str, float]:
        return asdict(self)

    @staticmethod
    def of_size(parameters: float, active: float | None = None, experts: int = 0, per_token: int = 0) -> Dimensions:
        """A model of which only sizes are known. Every parameter counts as multiplied, attention is left out.

        active: parameters per token of a mixture, from which the size of its experts follows:
        body + experts = parameters and body + experts x per_token / experts = active.
        """
        if not experts or active is None:
            return Dimensions(parameters)
        routed = (parameters - active) / (1 - per_token / experts)
        return Dimensions(parameters - routed, experts=routed, expert_count=experts, experts_per_token=per_token)

    @staticmethod
    def of_module(module: Any) -> Dimensions | None:
        """Counted from the parameters of a causal language model of transformers, which may be on the meta device.

        None for a network that is not built of one kind of attention layer between an embedding and a vocabulary head.
        """
        try:
            config, embedding, head = module.config, module.model.embed_tokens.weight, module.lm_head.weight
            layers, heads = config.num_hidden_layers, config.num_attention_heads
            kv_heads = config.num_key_value_heads
            # A shared parameter is named once.
            sizes = {name: parameter.numel() for name, parameter in module.named_parameters()}
            experts = sum(size for name, size in sizes.items() if ".experts." in name)
            total, per_token = (config.num_experts, config.num_experts_per_tok) if experts else (0, 0)
        except AttributeError:
            return None
        embedded = 0 if head is embedding else embedding.numel()
        return Dimensions(
            body=sum(sizes.values()) - experts - head.numel() - embedded,
            head=head.numel(),
            embedding=0 if config.tie_word_embeddings else embedded,
            hidden=config.hidden_size,
            vocab=config.vocab_size,
            experts=experts,
            expert_count=total,
            experts_per_token=per_token,
            layers=layers,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        )

    @staticmethod
    def of_facts(facts: Any) -> Dimensions | None:
        """What `as_dict` wrote, read back; None for anything that is not that."""
        names = Dimensions.__dataclass_fields__
        if not isinstance(facts, Mapping) or not set(facts) <= set(names) or "body" not in facts:
            return None
        for value in facts.values():
            if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value < 0:
                return None
        return Dimensions(**facts)
