"""The training network of the embedded models: its attention patterns, and its exports under published names."""

from __future__ import annotations

import pytest
import torch

from dllm_audit.models.tiny import network

SIZES = network.Architecture(vocab_size=40, width=16, layers=2, heads=2, mlp_width=24)


def random_twin() -> network.Twin:
    torch.manual_seed(0)
    twin = network.Twin(SIZES)
    for parameter in twin.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return twin


def visible(bias: torch.Tensor) -> list[str]:
    """Return rows of "x" (seen) and "." (not seen)."""
    return ["".join("x" if value == 0 else "." for value in row) for row in bias]


def test_block_causal_attention_sees_own_and_earlier_blocks_from_position_0() -> None:
    assert visible(network.block_causal_bias(5, 2)) == ["xx...", "xx...", "xxxx.", "xxxx.", "xxxxx"]


def test_noisy_blocks_see_earlier_clean_blocks_and_themselves_only() -> None:
    """Four clean positions, then a noisy copy of the last two; blocks of two."""
    assert visible(network.clean_and_noisy_bias(4, 2, 2)) == [
        *("xx....", "xx....", "xxxx..", "xxxx.."),
        *("xx..xx", "xx..xx"),
    ]


def test_training_on_a_noisy_copy_equals_decoding_that_block_after_clean_ones() -> None:
    twin = random_twin()
    clean = torch.randint(0, 40, (2, 8))
    noisy = clean.clone()
    noisy[:, 4:] = torch.randint(0, 40, (2, 4))
    positions = torch.cat([torch.arange(8), torch.arange(4, 8)])
    bias = network.clean_and_noisy_bias(8, 4, 4)
    together = twin(torch.cat([clean, noisy[:, 4:]], 1), positions, bias, slice(-4, None))
    canvas = torch.cat([clean[:, :4], noisy[:, 4:]], 1)
    alone = twin(canvas, torch.arange(8), network.block_causal_bias(8, 4), slice(-4, None))
    torch.testing.assert_close(together, alone)


@pytest.mark.parametrize("layout", ["llada", "llama"])
def test_published_weights_come_back_as_they_were_to_half_precision(layout: str) -> None:
    twin, other = random_twin(), network.Twin(SIZES)
    network.load_published_weights(other, network.published_weights(twin, layout), layout)
    for ours, theirs in zip(twin.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours.half().float(), theirs)


def test_transformers_llama_computes_the_same_logits() -> None:
    transformers = pytest.importorskip("transformers")
    twin = random_twin()
    config = transformers.LlamaConfig(**network.llama_config(SIZES, 0))
    llama = transformers.LlamaForCausalLM(config).float().eval()
    weights = {name: value.float() for name, value in network.published_weights(twin, "llama").items()}
    llama.load_state_dict(weights)
    network.load_published_weights(twin, network.published_weights(twin, "llama"), "llama")
    tokens = torch.randint(0, 40, (2, 9))
    with torch.inference_mode():
        theirs = llama(tokens).logits
        ours = twin(tokens, torch.arange(9), network.causal_bias(9))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
