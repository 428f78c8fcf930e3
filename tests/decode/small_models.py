"""Small random models, written as safetensors folders and loaded by the product's own loader."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers

from dllm_audit.backend import RecipeBackend
from dllm_audit.models.loading import LoadedModel, find_model, load_model
from dllm_audit.plugins import load_plugins

_FOLDERS = TemporaryDirectory(prefix="small-models-")
VOCABULARY = 97
MASK = 96
END = 2
GRID = 8

_BASE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "eos_token_id": END,
    "tie_word_embeddings": False,
}
_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "llama-block": "LlamaForBlockDiffusion",
    "dream": "DreamModel",
    "llada-moe": "LLaDAMoEModelLM",
}
_BASES = {"llama-block": "Llama", "dream": "Qwen2", "llada-moe": "Qwen3Moe"}
#: What a config of the family says beside the sizes of the network.
_EXTRA: dict[str, dict[str, Any]] = {
    "llama-block": {"mask_token_id": MASK, "block_length": GRID},
    "dream": {"mask_token_id": MASK},
    "llada-moe": {
        "mask_token_id": MASK,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "expert_intermediate_size": 24,
        "dense_intermediate_size": 64,
        "moe_layer_freq": [0, 1],
        "moe_router_enable_expert_bias": True,
        "norm_topk_prob": None,
    },
}
#: The same in the words of transformers' class.
_MIXTURE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "mlp_only_layers": [0]}


@cache
def folder_of(family: str) -> Path:
    """A folder with a random model of `family`, as a person would give it."""
    from safetensors.torch import save_file

    base = _BASES.get(family, family.capitalize())
    torch.manual_seed({"llama": 1, "qwen2": 2, "qwen3": 3, "llama-block": 4, "dream": 5, "llada-moe": 6}[family])
    sizes = _BASE | (_MIXTURE if family == "llada-moe" else {})
    module = getattr(transformers, f"{base}ForCausalLM")(getattr(transformers, f"{base}Config")(**sizes))
    for name, weight in module.named_parameters():
        # Far from the usual tiny start, so that logits differ clearly and biases matter.
        torch.nn.init.normal_(weight, mean=float("norm" in name), std=0.35)
    folder = Path(_FOLDERS.name) / family
    folder.mkdir()
    extra = _EXTRA.get(family, {})
    fields = {**_BASE, **extra, "architectures": [_ARCHITECTURES[family]], "model_type": base.lower()}
    (folder / "config.json").write_text(json.dumps(fields))
    weights = {k: v.detach().clone() for k, v in module.state_dict().items()}
    save_file(_as_llada_moe(weights) if family == "llada-moe" else weights, folder / "model.safetensors")
    return folder


def _as_llada_moe(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights of transformers' mixture under the published names, one expert each, and a bias of the router."""
    out = {}
    for name, weight in weights.items():
        prefix, packed, part = name.partition(".mlp.experts.")
        if not packed:
            out[name] = weight
            continue
        for number, expert in enumerate(weight):
            parts = zip(("gate_proj", "up_proj"), expert.chunk(2), strict=True)
            for kind, one in parts if part == "gate_up_proj" else [(part, expert)]:
                out[f"{prefix}.mlp.experts.{number}.{kind}.weight"] = one.clone()
        out[f"{prefix}.mlp.expert_bias"] = torch.linspace(-0.2, 0.3, len(weight))
    return out


TINY_LLADA = Path(__file__).parents[1] / "golden" / "tiny-llada"


@cache
def model_of(family: str) -> LoadedModel:
    """The loaded model of `family`; "llada" is the one of the recorded traces."""
    return load_model(find_model(str(TINY_LLADA if family == "llada" else folder_of(family))), "cpu", "float32")


#: Each built-in backend with a model that it decodes.
FAMILY_OF = {
    "uncached": "llada",
    "prefixcache": "llada",
    "dualcache": "llada",
    "dream": "dream",
    "block": "llama-block",
    "ar": "llama",
}
#: The same, and the other families that they decode.
CELLS = FAMILY_OF | {
    f"{name} on {family}": family
    for family in ("dream", "llada-moe")
    for name in ("uncached", "prefixcache", "dualcache")
}


@cache
def backend(name: str) -> RecipeBackend:
    return load_plugins().backends[name.partition(" on ")[0]]


def generate(name: str, requests, settings=None, concurrency: int = 1, model=None, traced: bool = False, seed: int = 0):
    """(results by id, log) of a backend on its model."""
    results = {}
    session = backend(name).open(model or model_of(CELLS[name]), settings or {}, seed)

    def keep(result) -> None:
        assert result.id not in results, "a request is answered once"
        results[result.id] = result

    log = session.generate(list(requests), keep, concurrency, traced)
    return results, log
