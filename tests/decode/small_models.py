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
}


@cache
def folder_of(family: str) -> Path:
    """A folder with a random model of `family`, as a person would give it."""
    from safetensors.torch import save_file

    base = {"llama-block": "llama"}.get(family, family).capitalize()
    torch.manual_seed({"llama": 1, "qwen2": 2, "qwen3": 3, "llama-block": 4}[family])
    module = getattr(transformers, f"{base}ForCausalLM")(getattr(transformers, f"{base}Config")(**_BASE))
    for name, weight in module.named_parameters():
        # Far from the usual tiny start, so that logits differ clearly and biases matter.
        torch.nn.init.normal_(weight, mean=float("norm" in name), std=0.35)
    folder = Path(_FOLDERS.name) / family
    folder.mkdir()
    extra = {"mask_token_id": MASK, "block_length": GRID} if family == "llama-block" else {}
    fields = {**_BASE, **extra, "architectures": [_ARCHITECTURES[family]], "model_type": base.lower()}
    (folder / "config.json").write_text(json.dumps(fields))
    save_file({k: v.detach().clone() for k, v in module.state_dict().items()}, folder / "model.safetensors")
    return folder


TINY_LLADA = Path(__file__).parents[1] / "golden" / "tiny-llada"


@cache
def model_of(family: str) -> LoadedModel:
    """The loaded model of `family`; "llada" is the one of the recorded traces."""
    return load_model(find_model(str(TINY_LLADA if family == "llada" else folder_of(family))), "cpu", "float32")


#: Each built-in backend with a model that it decodes.
FAMILY_OF = {"uncached": "llada", "prefixcache": "llada", "dualcache": "llada", "block": "llama-block", "ar": "llama"}


@cache
def backend(name: str) -> RecipeBackend:
    return load_plugins().backends[name]


def generate(name: str, requests, settings=None, concurrency: int = 1, model=None, traced: bool = False, seed: int = 0):
    """(results by id, log) of a backend on its model."""
    results = {}
    session = backend(name).open(model or model_of(FAMILY_OF[name]), settings or {}, seed)

    def keep(result) -> None:
        assert result.id not in results, "a request is answered once"
        results[result.id] = result

    log = session.generate(list(requests), keep, concurrency, traced)
    return results, log
