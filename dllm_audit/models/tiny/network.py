"""The network that the three embedded twins share, written for training on a CPU, with its export to
published layouts.

The product does not decode with this module: it loads the exported folders through the ordinary families.
Training has its own module because attention written as two matrix products compiles to faster CPU code than
the fused kernel, whose backward pass took more than half of a step.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Architecture:
    """Sizes of a twin, as counts; `rope_theta` and `rms_norm_eps` as in Llama. The head is not tied."""

    vocab_size: int
    width: int = 128
    layers: int = 4
    heads: int = 4
    mlp_width: int = 320
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-5
    max_positions: int = 4096


class Norm(nn.Module):
    """Root-mean-square normalisation over the last axis, with a learned scale."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


class Layer(nn.Module):
    """One pre-norm transformer layer: attention with rotary positions, then a SwiGLU."""

    def __init__(self, sizes: Architecture):
        super().__init__()
        width, mlp = sizes.width, sizes.mlp_width
        self.heads = sizes.heads
        self.attn_norm = Norm(width, sizes.rms_norm_eps)
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, width, bias=False)
        self.v = nn.Linear(width, width, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        self.mlp_norm = Norm(width, sizes.rms_norm_eps)
        self.gate = nn.Linear(width, mlp, bias=False)
        self.up = nn.Linear(width, mlp, bias=False)
        self.down = nn.Linear(mlp, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, bias: Tensor | None) -> Tensor:
        B, L, width = x.shape
        h = self.attn_norm(x)
        q, k, v = (p(h).view(B, L, self.heads, width // self.heads).transpose(1, 2) for p in (self.q, self.k, self.v))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        scores = (q @ k.transpose(-1, -2)) * (width // self.heads) ** -0.5
        if bias is not None:
            scores = scores + bias
        h = (torch.softmax(scores, -1).to(v.dtype) @ v).transpose(1, 2).reshape(B, L, width)
        x = x + self.o(h)
        h = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Twin(nn.Module):
    """A small transformer whose attention pattern is an argument, so that one class serves all twins."""

    def __init__(self, sizes: Architecture):
        super().__init__()
        self.sizes = sizes
        self.embed = nn.Embedding(sizes.vocab_size, sizes.width)
        layers = [Layer(sizes) for _ in range(sizes.layers)]
        self.layers = nn.ModuleList(layers)
        self.norm = Norm(sizes.width, sizes.rms_norm_eps)
        self.head = nn.Linear(sizes.width, sizes.vocab_size, bias=False)
        nn.init.normal_(self.embed.weight, std=1.0)
        nn.init.zeros_(self.head.weight)
        for layer in layers:
            nn.init.zeros_(layer.o.weight)
            nn.init.zeros_(layer.down.weight)

    def forward(
        self, tokens: Tensor, positions: Tensor, bias: Tensor | None = None, logits_for: slice | None = None
    ) -> Tensor:
        """Return logits [B, W, V] of the positions in `logits_for` (all when None).

        tokens: int64 [B, L]. positions: int64 [L], rotary positions. bias: float [L, L], added to the
        attention scores (0 where a query, first axis, sees a key; -inf where not); None means that all see
        all.
        """
        cos, sin = rotary(positions, self.sizes)
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin, bias)
        if logits_for is not None:
            x = x[:, logits_for]
        return self.head(self.norm(x))


def rotary(positions: Tensor, sizes: Architecture) -> tuple[Tensor, Tensor]:
    """Return cosine and sine [L, head width] in Llama's half-split order."""
    half = sizes.width // sizes.heads // 2
    rates = sizes.rope_theta ** (-torch.arange(half, dtype=torch.float32) / half)
    angles = positions.float()[:, None] * rates[None, :]
    angles = torch.cat([angles, angles], -1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions to x [B, heads, L, head width]."""
    first, second = x.chunk(2, -1)
    return (x * cos + torch.cat([-second, first], -1) * sin).to(x.dtype)


def causal_bias(length: int) -> Tensor:
    """Return the additive bias [L, L] of causal attention."""
    return additive(torch.ones(length, length, dtype=torch.bool).tril())


def block_causal_bias(length: int, block_length: int) -> Tensor:
    """Return the additive bias [L, L] where a query in block j sees blocks 0..j, counted from position 0."""
    block = torch.arange(length) // block_length
    return additive(block[:, None] >= block[None, :])


def clean_and_noisy_bias(length: int, noisy: int, block_length: int) -> Tensor:
    """Return the additive bias [L + N, L + N] for block diffusion training on a clean canvas followed by a
    noisy copy.

    The first L positions are the clean canvas, block-causal. The last N are a noisy copy of the canvas's last
    N positions: a noisy query in block j sees the clean blocks before j and its own noisy block. Source:
    BD3-LM, arXiv 2503.09573, section 3 (the vectorised training pass).
    """
    block = torch.cat([torch.arange(length), torch.arange(length - noisy, length)]) // block_length
    is_noisy = torch.arange(length + noisy) >= length
    query, key = block[:, None], block[None, :]
    sees_clean = ~is_noisy[None, :] & torch.where(is_noisy[:, None], query > key, query >= key)
    sees_noisy = is_noisy[:, None] & is_noisy[None, :] & (query == key)
    return additive(sees_clean | sees_noisy)


def additive(visible: Tensor) -> Tensor:
    """Return 0 where `visible` (bool) and a large negative number elsewhere."""
    return torch.zeros(visible.shape).masked_fill(~visible, -1e9)


LLADA_KEYS = {
    "attn_norm": "attn_norm",
    "q": "q_proj",
    "k": "k_proj",
    "v": "v_proj",
    "o": "attn_out",
    "mlp_norm": "ff_norm",
    "gate": "ff_proj",
    "up": "up_proj",
    "down": "ff_out",
}
LLAMA_KEYS = {
    "attn_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


def key_names(layout: str, layers: int) -> dict[str, str]:
    """Return our parameter name -> published name, for layout "llada" or "llama"."""
    if layout == "llada":
        top = {
            "embed": "model.transformer.wte",
            "norm": "model.transformer.ln_f",
            "head": "model.transformer.ff_out",
        }
        prefix, names = "model.transformer.blocks", LLADA_KEYS
    else:
        top = {"embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}
        prefix, names = "model.layers", LLAMA_KEYS
    found = {f"{ours}.weight": f"{theirs}.weight" for ours, theirs in top.items()}
    for i in range(layers):
        for ours, theirs in names.items():
            found[f"layers.{i}.{ours}.weight"] = f"{prefix}.{i}.{theirs}.weight"
    return found


def published_weights(twin: Twin, layout: str) -> dict[str, Tensor]:
    """Return the weights as float16 under the published names of `layout` ("llada" or "llama")."""
    names = key_names(layout, twin.sizes.layers)
    return {names[name]: value.detach().half().contiguous() for name, value in twin.state_dict().items()}


def load_published_weights(twin: Twin, weights: dict[str, Tensor], layout: str) -> None:
    """Fill `twin` from weights saved by `published_weights`; a missing name raises RuntimeError."""
    ours = {theirs: name for name, theirs in key_names(layout, twin.sizes.layers).items()}
    twin.load_state_dict({ours[name]: value.float() for name, value in weights.items()})


def llada_config(sizes: Architecture, eos_token_id: int, mask_token_id: int) -> dict[str, Any]:
    """Return the config.json fields of a LLaDA checkpoint of these sizes."""
    return {
        "activation_type": "silu",
        "alibi": False,
        "alibi_bias_max": 8.0,
        "architectures": ["LLaDAModelLM"],
        "attention_dropout": 0.0,
        "attention_layer_norm": False,
        "attention_layer_norm_with_affine": True,
        "bias_for_layer_norm": False,
        "block_group_size": 1,
        "block_type": "llama",
        "d_model": sizes.width,
        "embedding_dropout": 0.0,
        "embedding_size": sizes.vocab_size,
        "eos_token_id": eos_token_id,
        "flash_attention": False,
        "include_bias": False,
        "include_qkv_bias": False,
        "init_cutoff_factor": None,
        "init_device": "meta",
        "init_fn": "mitchell",
        "init_std": 0.02,
        "input_emb_norm": False,
        "layer_norm_type": "rms",
        "layer_norm_with_affine": True,
        "mask_token_id": mask_token_id,
        "max_sequence_length": sizes.max_positions,
        "mlp_hidden_size": sizes.mlp_width,
        "mlp_ratio": 4,
        "model_type": "llada",
        "multi_query_attention": None,
        "n_heads": sizes.heads,
        "n_kv_heads": sizes.heads,
        "n_layers": sizes.layers,
        "pad_token_id": eos_token_id,
        "precision": "amp_bf16",
        "residual_dropout": 0.0,
        "rms_norm_eps": sizes.rms_norm_eps,
        "rope": True,
        "rope_full_precision": True,
        "rope_theta": sizes.rope_theta,
        "scale_logits": False,
        "torch_dtype": "float16",
        "use_cache": False,
        "vocab_size": sizes.vocab_size,
        "weight_tying": False,
    }


def llama_config(sizes: Architecture, eos_token_id: int) -> dict[str, Any]:
    """Return the config.json fields of a Llama checkpoint of these sizes."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": eos_token_id,
        "head_dim": sizes.width // sizes.heads,
        "hidden_act": "silu",
        "hidden_size": sizes.width,
        "initializer_range": 0.02,
        "intermediate_size": sizes.mlp_width,
        "max_position_embeddings": sizes.max_positions,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": sizes.heads,
        "num_hidden_layers": sizes.layers,
        "num_key_value_heads": sizes.heads,
        "pad_token_id": eos_token_id,
        "rms_norm_eps": sizes.rms_norm_eps,
        "rope_parameters": {"rope_theta": sizes.rope_theta, "rope_type": "default"},
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
        "use_cache": True,
        "vocab_size": sizes.vocab_size,
    }


def sizes_as_text(sizes: Architecture) -> str:
    """Return the sizes as one line for a model card."""
    return ", ".join(f"{name} {value}" for name, value in asdict(sizes).items())
