"""The benchmark models: 60 M parameters with random weights from a seed, LLaDA-shaped and Llama-shaped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

from dllm_audit.models.attention import register_attention
from dllm_audit.models.families import FAMILIES, ModelFamily
from dllm_audit.models.loading import LoadedModel, ModelSource, find_model, load_model

_WIDTH, _LAYERS, _HEADS, _FEED_FORWARD, _VOCABULARY = 512, 8, 8, 1536, 32768

LLADA_60M: dict[str, Any] = {
    "architectures": ["LLaDAModelLM"],
    "d_model": _WIDTH,
    "n_layers": _LAYERS,
    "n_heads": _HEADS,
    "n_kv_heads": _HEADS,
    "mlp_hidden_size": _FEED_FORWARD,
    "vocab_size": _VOCABULARY,
    "embedding_size": _VOCABULARY,
    "max_sequence_length": 4096,
    "rope_theta": 500000.0,
    "mask_token_id": _VOCABULARY - 1,
    "weight_tying": False,
}
LLAMA_60M: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": _WIDTH,
    "num_hidden_layers": _LAYERS,
    "num_attention_heads": _HEADS,
    "num_key_value_heads": _HEADS,
    "intermediate_size": _FEED_FORWARD,
    "vocab_size": _VOCABULARY,
    "max_position_embeddings": 4096,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
}


def random_model(name: str, fields: dict[str, Any], seed: int = 0) -> LoadedModel:
    """A model with the network that `fields` describe and random weights, never written to disk."""
    family: ModelFamily = next(f for f in FAMILIES if fields["architectures"][0] in f.architectures)
    config = getattr(transformers, family.config_class)(**family.translate(fields))
    config._attn_implementation = register_attention()
    config.is_causal = False
    torch.manual_seed(seed)
    module = getattr(transformers, family.module)(config).eval().requires_grad_(False)
    source = ModelSource(name, Path(name), "folder", None, fields, family, family.traits(fields))
    return LoadedModel(source, module, None, torch.device("cpu"), torch.float32)


def embedded(name: str) -> LoadedModel:
    """An embedded model, loaded as the product loads it."""
    return load_model(find_model(name), "cpu", "float32")


def random_prompts(number: int, length: int, vocabulary: int, seed: int = 0) -> list[tuple[int, ...]]:
    """Prompts of random ids: fixed work, for speed alone."""
    generator = torch.Generator().manual_seed(seed)
    return [tuple(torch.randint(0, vocabulary - 2, (length,), generator=generator).tolist()) for _ in range(number)]
