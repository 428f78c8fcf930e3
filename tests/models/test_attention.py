"""Heads that share keys attend as if each had its own."""

from types import SimpleNamespace

import pytest
import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from dllm_audit.models.attention import packed_attention


@pytest.fixture
def states():
    generator = torch.Generator().manual_seed(0)
    return lambda *shape: torch.randn(shape, generator=generator)


@pytest.mark.parametrize("heads", [2, 4, 6])
@pytest.mark.parametrize("width", [1, 5])
def test_a_mask_of_visible_keys_gives_what_repeated_keys_give(states, heads, width):
    module = SimpleNamespace(num_key_value_groups=heads // 2, training=False)
    query, key, value = states(3, heads, width, 8), states(3, 2, 11, 8), states(3, 2, 11, 8)
    mask = (torch.arange(11) < torch.tensor([[4], [11], [7]]))[:, None, None, :]
    found, _ = packed_attention(module, query, key, value, mask, scaling=0.3, is_causal=False)
    wanted, _ = sdpa_attention_forward(module, query, key, value, mask, scaling=0.3, is_causal=False)
    assert found.shape == wanted.shape == (3, width, heads, 8)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)


def test_a_mask_that_differs_between_queries_is_left_to_transformers(states):
    module = SimpleNamespace(num_key_value_groups=2, training=False)
    query, key, value = states(1, 4, 5, 8), states(1, 2, 5, 8), states(1, 2, 5, 8)
    mask = torch.ones(5, 5, dtype=torch.bool).tril()[None, None]
    found, _ = packed_attention(module, query, key, value, mask, is_causal=False)
    assert torch.equal(found, sdpa_attention_forward(module, query, key, value, mask, is_causal=False)[0])
