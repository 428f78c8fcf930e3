"""Model families: which transformers module runs a checkpoint, and how its config and weight names translate.

A family is chosen by the checkpoint's `architectures`, never by `model_type` (LLaDA and LLaDA-MoE both say "llada").
Nothing in a checkpoint's config chooses code: attention implementation, kernels and remote code are not read from it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dllm_audit.errors import ModelError, did_you_mean
from dllm_audit.models.traits import ModelTraits

ConfigFields = Mapping[str, Any]


class Place(NamedTuple):
    """Where a checkpoint's weight goes: the module's weight `name`, or a part of it.

    expert: index into a weight that holds all experts of a layer, or None for a whole weight.
    half: which of two halves of that expert's rows, or None for all of them.
    """

    name: str
    expert: int | None = None
    half: int | None = None


#: One expert's weight in a checkpoint, and the weight of all experts that transformers keeps instead.
_EXPERT = re.compile(r"^(.+\.mlp\.experts)\.(\d+)\.(gate_proj|up_proj|down_proj)\.weight$")
_EXPERT_PARTS: dict[str, tuple[str, int | None]] = {
    "gate_proj": ("gate_up_proj", 0),
    "up_proj": ("gate_up_proj", 1),
    "down_proj": ("down_proj", None),
}


def _ids(stated: Any) -> Sequence[Any]:
    """Token ids as configs state them: none, one, or a list."""
    if stated is None:
        return ()
    return stated if isinstance(stated, list | tuple) else (stated,)


@dataclass(frozen=True)
class ModelFamily:
    """One row of the family table.

    architectures: names in config.json that mean this family. module: transformers class, such as "LlamaForCausalLM".
    config_class: its config class. translate: checkpoint config -> keyword arguments of that class.
    attention, shift: see ModelTraits. rename: (pattern, replacement) pairs from checkpoint keys to module keys.
    mask_token_id: the published mask id, for checkpoints whose config leaves it out.
    end_token_ids: published ids that end an answer beside those of the config, where the vocabulary has them.
    adapt: changes the module, still without weights, where transformers' own differs from the published network.
    """

    name: str
    summary: str
    architectures: tuple[str, ...]
    module: str
    config_class: str
    translate: Callable[[ConfigFields], dict[str, Any]]
    attention: str
    shift: int
    rename: tuple[tuple[str, str], ...] = ()
    mask_token_id: int | None = None
    end_token_ids: tuple[int, ...] = ()
    adapt: Callable[[Any, ConfigFields], None] | None = None

    def place(self, checkpoint_key: str) -> Place:
        """Where the weight that the checkpoint calls `checkpoint_key` belongs."""
        name = self.module_key(checkpoint_key)
        expert = _EXPERT.match(name)
        if expert is None:
            return Place(name)
        weight, half = _EXPERT_PARTS[expert[3]]
        return Place(f"{expert[1]}.{weight}", int(expert[2]), half)

    def module_key(self, checkpoint_key: str) -> str:
        """The module's name of the weight that the checkpoint calls `checkpoint_key`."""
        for pattern, replacement in self.rename:
            checkpoint_key, hits = re.subn(pattern, replacement, checkpoint_key)
            if hits:
                break
        return checkpoint_key

    def traits(self, fields: ConfigFields, also_end: Any = None) -> ModelTraits:
        """Traits of a checkpoint of this family with config `fields`. also_end: one more id that ends an answer, or a list."""
        translated = self.translate(fields)
        stated = [*_ids(fields.get("eos_token_id")), *_ids(also_end)]
        published = (i for i in self.end_token_ids if i < translated["vocab_size"])
        attention = self.attention
        return ModelTraits(
            family=self.name,
            attention=attention,
            shift=self.shift,
            vocab_size=translated["vocab_size"],
            max_positions=translated["max_position_embeddings"],
            mask_token_id=fields.get("mask_token_id", self.mask_token_id),
            end_token_ids=tuple(dict.fromkeys([*stated, *published])),
            bos_token_id=fields.get("bos_token_id"),
            block_length=fields.get("block_length") if attention == "block" else None,
        )


#: Fields of a transformers-style config that describe the network; anything else in the file is ignored.
_NETWORK_FIELDS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "attention_bias",
    "mlp_bias",
    "tie_word_embeddings",
)


def _as_published(fields: ConfigFields) -> dict[str, Any]:
    if fields.get("use_sliding_window"):
        # transformers' default is full attention, so leaving the field out would run another network unseen.
        raise ModelError(
            "This config has use_sliding_window=True; only full attention is supported. Use a checkpoint without it."
        )
    return {name: fields[name] for name in _NETWORK_FIELDS if fields.get(name) is not None}


def _from_llada(fields: ConfigFields) -> dict[str, Any]:
    """LLaDA's config in Llama's words. Source: ML-GSAI/LLaDA-8B, configuration_llada.py."""
    expected = {"block_type": "llama", "activation_type": "silu", "layer_norm_type": "rms", "rope": True}
    # These change what the network computes, and have no weight of their own that would be missed.
    off = {name: False for name in ("alibi", "scale_logits", "input_emb_norm") if fields.get(name)}
    for name, value in {**expected, **off}.items():
        if fields.get(name, value) != value:
            raise ModelError(
                f"This LLaDA config has {name}={fields[name]!r}; only {value!r} is supported. Use a LLaDA-8B style checkpoint."
            )
    heads = fields["n_heads"]
    hidden = fields["d_model"]
    return {
        "vocab_size": fields.get("embedding_size") or fields["vocab_size"],
        "hidden_size": hidden,
        "intermediate_size": fields.get("mlp_hidden_size") or fields["mlp_ratio"] * hidden,
        "num_hidden_layers": fields["n_layers"],
        "num_attention_heads": heads,
        "num_key_value_heads": fields.get("n_kv_heads") or heads,
        "hidden_act": "silu",
        "max_position_embeddings": fields["max_sequence_length"],
        "rms_norm_eps": fields.get("rms_norm_eps", 1e-5),
        "rope_theta": fields.get("rope_theta", 10000.0),
        "attention_bias": bool(fields.get("include_qkv_bias") or fields.get("include_bias")),
        "mlp_bias": bool(fields.get("include_bias")),
        "tie_word_embeddings": bool(fields.get("weight_tying", False)),
    }


def _from_llada_moe(fields: ConfigFields) -> dict[str, Any]:
    """LLaDA-MoE's config in Qwen3-MoE's words: the same norms per head, experts and router without renormalisation.

    Source: inclusionAI/LLaDA-MoE-7B-A1B, modeling_lladamoe.py, which ignores `norm_topk_prob` and the name of the score
    function: the router is a softmax whose largest weights are used as they are.
    """
    expected = {"clip_qkv": None, "qk_layernorm": True, "partial_rotary_factor": 1, "routed_scaling_factor": 1}
    for name, value in {**expected, "shared_expert_intermediate_size": None}.items():
        if fields.get(name, value) != value:
            raise ModelError(
                f"This LLaDA-MoE config has {name}={fields[name]!r}; only {value!r} is supported. "
                "Use a checkpoint of the construction of LLaDA-MoE-7B-A1B."
            )
    layers = fields["num_hidden_layers"]
    frequency = fields.get("moe_layer_freq")
    sparse = list(frequency) if isinstance(frequency, list | tuple) else [1] * layers
    if len(sparse) != layers:
        raise ModelError(
            f"This LLaDA-MoE config has moe_layer_freq for {len(sparse)} layers and num_hidden_layers={layers}. "
            "One of them belongs to another checkpoint."
        )
    return {
        **_as_published(fields),
        "head_dim": fields.get("head_dim") or fields["hidden_size"] // fields["num_attention_heads"],
        "intermediate_size": fields.get("dense_intermediate_size") or fields["expert_intermediate_size"],
        "moe_intermediate_size": fields["expert_intermediate_size"],
        "num_experts": fields["num_experts"],
        "num_experts_per_tok": fields["num_experts_per_tok"],
        "mlp_only_layers": [layer for layer, kind in enumerate(sparse) if kind == 0],
        "norm_topk_prob": False,
    }


def _adapt_llada_moe(module: Any, fields: ConfigFields) -> None:
    if fields.get("moe_router_enable_expert_bias"):
        from dllm_audit.models.experts import bias_routers

        bias_routers(module)


_LLADA_KEYS = (
    (r"^model\.transformer\.wte\.", "model.embed_tokens."),
    (r"^model\.transformer\.ln_f\.", "model.norm."),
    (r"^model\.transformer\.ff_out\.", "lm_head."),
    (r"^model\.transformer\.blocks\.(\d+)\.attn_norm\.", r"model.layers.\1.input_layernorm."),
    (r"^model\.transformer\.blocks\.(\d+)\.ff_norm\.", r"model.layers.\1.post_attention_layernorm."),
    (r"^model\.transformer\.blocks\.(\d+)\.attn_out\.", r"model.layers.\1.self_attn.o_proj."),
    (r"^model\.transformer\.blocks\.(\d+)\.([qkv]_proj)\.", r"model.layers.\1.self_attn.\2."),
    (r"^model\.transformer\.blocks\.(\d+)\.ff_proj\.", r"model.layers.\1.mlp.gate_proj."),
    (r"^model\.transformer\.blocks\.(\d+)\.up_proj\.", r"model.layers.\1.mlp.up_proj."),
    (r"^model\.transformer\.blocks\.(\d+)\.ff_out\.", r"model.layers.\1.mlp.down_proj."),
)


def _family(name: str, summary: str, architectures: tuple[str, ...], base: str, **changes: Any) -> ModelFamily:
    standard: dict[str, Any] = {
        "module": f"{base}ForCausalLM",
        "config_class": f"{base}Config",
        "translate": _as_published,
        "attention": "causal",
        "shift": 1,
    }
    return ModelFamily(name, summary, architectures, **{**standard, **changes})


FAMILIES: tuple[ModelFamily, ...] = (
    _family(
        "llada",
        "LLaDA-8B, LLaDA-1.5: masked diffusion, Llama's network with bidirectional attention",
        ("LLaDAModelLM",),
        "Llama",
        translate=_from_llada,
        rename=_LLADA_KEYS,
        attention="bidirectional",
        shift=0,
        mask_token_id=126336,
        # <|eot_id|>, with which its answers end and which its config leaves out: ML-GSAI/LLaDA b7e6c35, generate.py.
        end_token_ids=(126348,),
    ),
    _family(
        "llada-moe",
        "LLaDA-MoE: masked diffusion, Qwen3-MoE's network with bidirectional attention and an own router",
        ("LLaDAMoEModelLM",),
        "Qwen3Moe",
        translate=_from_llada_moe,
        rename=((r"\.mlp\.expert_bias$", ".mlp.gate.expert_bias"),),
        attention="bidirectional",
        shift=0,
        mask_token_id=156895,
        adapt=_adapt_llada_moe,
    ),
    _family(
        "dream",
        "Dream, DiffuCoder: masked diffusion, Qwen2's network with bidirectional attention and a shifted head",
        ("DreamModel",),
        "Qwen2",
        attention="bidirectional",
        mask_token_id=151666,
        # <|im_end|>, with which a turn of Qwen2's chat template ends; the config names <|endoftext|> alone.
        end_token_ids=(151645,),
    ),
    _family(
        "llama-block",
        "block diffusion on Llama's network, block-causal attention on an absolute grid",
        ("LlamaForBlockDiffusion",),
        "Llama",
        attention="block",
        shift=0,
    ),
    _family("llama", "Llama 2 and 3, SmolLM2: autoregressive", ("LlamaForCausalLM",), "Llama"),
    _family("qwen2", "Qwen2, Qwen2.5: autoregressive", ("Qwen2ForCausalLM",), "Qwen2"),
    _family("qwen3", "Qwen3: autoregressive", ("Qwen3ForCausalLM",), "Qwen3"),
)


def family_of(fields: ConfigFields, where: str, families: tuple[ModelFamily, ...] = FAMILIES) -> ModelFamily:
    """The family of a checkpoint with config `fields`; `where` names it in messages."""
    architectures = fields.get("architectures") or []
    if not isinstance(architectures, list) or not all(isinstance(name, str) for name in architectures):
        raise ModelError(f"{where}: architectures in its config.json is no list of names.")
    known = {name: family for family in families for name in family.architectures}
    for name in architectures:
        if name in known:
            return known[name]
    if not architectures:
        raise ModelError(f"{where}: its config.json names no architectures, so the model family is unknown.")
    raise ModelError(
        f"{where}: its architecture {architectures[0]!r} belongs to no model family that is installed. "
        + did_you_mean(architectures[0], known)
    )
