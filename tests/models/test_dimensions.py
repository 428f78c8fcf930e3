"""What a network is made of, counted from its config without loading it, and as it is loaded."""

from pathlib import Path

import pytest

from dllm_audit.models.dimensions import Dimensions
from dllm_audit.models.loading import dimensions_of, find_model, load_model

GOLDEN = Path(__file__).parents[1] / "golden"


def test_sizes_of_an_embedded_model_by_hand():
    # A layer: 4 attention matrices of 128 x 128, 3 of 128 x 320 in the MLP, 2 norms of 128; a last norm of 128.
    body = 5 * (4 * 128 * 128 + 3 * 128 * 320 + 2 * 128) + 128
    assert dimensions_of(find_model("tiny-ar")) == Dimensions(
        body=body, head=438 * 128, embedding=438 * 128, hidden=128, vocab=438, layers=5, heads=4, kv_heads=4, head_dim=32
    )  # fmt: skip


def test_grouped_queries_have_fewer_heads_of_keys_and_values():
    found = dimensions_of(find_model(str(GOLDEN / "tiny-dream")))
    assert (found.layers, found.heads, found.kv_heads, found.head_dim) == (3, 4, 2, 16)
    assert found.kv_elements == 2 * 3 * 2 * 16


def test_experts_of_a_mixture_stand_apart():
    # 3 layers of 8 experts, each 3 matrices of 64 x 48, of which every position is multiplied with 2.
    found = dimensions_of(find_model(str(GOLDEN / "tiny-llada-moe")))
    assert (found.expert_count, found.experts_per_token) == (8, 2)
    assert found.experts == 3 * 8 * 3 * 64 * 48
    assert found.chosen_experts == found.experts / 4
    assert found.active == found.body + found.head + found.experts / 4


@pytest.mark.parametrize("name", ["tiny-llada", "tiny-dream", "tiny-llada-moe"])
def test_the_loaded_model_has_the_sizes_that_its_config_means(name):
    source = find_model(str(GOLDEN / name))
    loaded = load_model(source, tokenizer=False)
    assert loaded.dimensions == dimensions_of(source)
    assert loaded.dimensions.parameters == loaded.parameters


def test_a_head_that_shares_the_embedding_is_in_memory_once():
    from transformers import Qwen2Config, Qwen2ForCausalLM

    sizes = {"vocab_size": 10, "hidden_size": 8, "intermediate_size": 4, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    module = Qwen2ForCausalLM(Qwen2Config(**sizes, **heads, tie_word_embeddings=True))
    found = Dimensions.of_module(module)
    assert (found.head, found.embedding) == (80, 0)
    assert found.parameters == sum(p.numel() for p in module.parameters())


def test_a_network_of_another_make_is_not_described():
    import torch

    assert Dimensions.of_module(torch.nn.Linear(2, 2)) is None
