"""The models of the steps: small ones of every family, and a large one with random weights, on the device that is tested."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from dllm_audit.models.families import FAMILIES
from dllm_audit.models.loading import LoadedModel, ModelSource, _build_module, find_model, load_model, pick_device
from tests.decode.small_models import TINY_LLADA, folder_of

#: About 1.4 and 1.5 G parameters: shapes of Llama-3.2-1B (head not tied) and of a LLaDA of that size.
_LARGE = {
    "LlamaForCausalLM": {
        "hidden_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "intermediate_size": 8192,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
    },
    "LLaDAModelLM": {
        "d_model": 2048,
        "n_layers": 16,
        "n_heads": 16,
        "n_kv_heads": 16,
        "mlp_hidden_size": 6144,
        "vocab_size": 126464,
        "max_sequence_length": 8192,
    },
}
_TINY = {
    "LlamaForCausalLM": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 64,
        "vocab_size": 97,
        "max_position_embeddings": 1024,
    },
    "LLaDAModelLM": {
        "d_model": 32,
        "n_layers": 2,
        "n_heads": 4,
        "n_kv_heads": 4,
        "mlp_hidden_size": 64,
        "vocab_size": 97,
        "max_sequence_length": 1024,
    },
}


@dataclass(frozen=True)
class Context:
    """Where the steps run. device: as on the command line. folder: for their files."""

    device: str
    folder: Path

    @cached_property
    def on(self) -> torch.device:
        return pick_device(self.device)

    @property
    def dry(self) -> bool:
        """Whether the steps only show that they work: tiny models, no judgement of times."""
        return self.on.type != "cuda"

    @property
    def half(self) -> str:
        """The number format of the large models."""
        return "float32" if self.dry else "bfloat16"

    def small(self, family: str) -> LoadedModel:
        """A small random model of a family in float32, loaded as the product loads it."""
        folder = TINY_LLADA if family == "llada" else folder_of(family)
        return load_model(find_model(str(folder)), self.device, "float32")

    def embedded(self, name: str, dtype: str = "float32") -> LoadedModel:
        return load_model(find_model(name), self.device, dtype)

    def large(self, kind: str, engine: str = "eager") -> LoadedModel:
        """The large random model, "ar" or "diffusion", in `half`; tiny in the dry mode."""
        architecture = "LlamaForCausalLM" if kind == "ar" else "LLaDAModelLM"
        sizes = (_TINY if self.dry else _LARGE)[architecture]
        fields: dict[str, Any] = {**sizes, "architectures": [architecture], "rope_theta": 500000.0}
        if kind != "ar":
            fields |= {
                "mask_token_id": sizes["vocab_size"] - 1,
                "embedding_size": sizes["vocab_size"],
                "weight_tying": False,
            }
        else:
            fields["tie_word_embeddings"] = False
        return random_on(f"random-{kind}", fields, self.on, getattr(torch, self.half), engine)


def random_on(
    name: str, fields: dict[str, Any], device: torch.device, dtype: torch.dtype, engine: str = "eager"
) -> LoadedModel:
    """A model with random weights that were drawn on the device, built as the loader builds it and never written to disk."""
    family = next(f for f in FAMILIES if fields["architectures"][0] in f.architectures)
    source = ModelSource(name, Path(name), "folder", None, fields, family, family.traits(fields))
    module = _build_module(source, device, dtype)
    generator = torch.Generator(device).manual_seed(0)
    state = {
        key: torch.ones(weight.shape, device=device, dtype=dtype)
        if "norm" in key
        else torch.randn(weight.shape, generator=generator, device=device, dtype=dtype) * 0.02
        for key, weight in module.state_dict().items()
    }
    module.load_state_dict(state, assign=True)
    module.eval().requires_grad_(False)
    return LoadedModel(source, module, None, device, dtype, engine)


def with_engine(model: LoadedModel, engine: str) -> LoadedModel:
    """The same weights, executed otherwise."""
    return replace(model, engine=engine)
