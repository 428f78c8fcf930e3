"""Query positions of known work, computed by hand, and by a wrapper around the model."""

from __future__ import annotations

import pytest
from small_models import FAMILY_OF, generate, model_of

from dllm_audit import Request

PROMPT = tuple(3 + i % 80 for i in range(1000))


@pytest.fixture
def outside(request):
    """Counts calls and query positions (rows x width) of every forward of the models of all backends."""
    counted = {"calls": 0, "positions": 0}
    undo = []
    for family in set(FAMILY_OF.values()):
        network = model_of(family).module.model
        inner = network.forward

        def forward(*args, inner=inner, **kwargs):
            rows, width = kwargs["input_ids"].shape
            counted["calls"] += 1
            counted["positions"] += rows * width
            return inner(*args, **kwargs)

        network.forward = forward
        undo.append((network, inner))
    yield counted
    for network, inner in undo:
        network.forward = inner


def decode(name, prompt=PROMPT, **settings):
    return generate(name, [Request("a", prompt_ids=prompt)], settings)[0]["a"]


@pytest.mark.slow
def test_1000_prompt_tokens_and_256_masks_at_4_per_step_without_a_cache_are_80384_query_positions(outside):
    result = decode("uncached", gen_length=256, block_length=32, tokens_per_step=4)
    assert 64 * (1000 + 256) == 80_384
    assert result.query_positions == outside["positions"] == 80_384
    assert result.nfe == outside["calls"] == 64
    assert result.forwards == {"denoise": 64}


def test_autoregressive_decoding_of_the_same_work_is_1255_because_the_last_token_is_never_fed(outside):
    result = decode("ar", gen_length=256, stop_at_eos=False)
    assert result.query_positions == outside["positions"] == 1000 + 255
    assert result.forwards == {"prefill": 1, "denoise": 255}
    assert outside["calls"] == 256


def test_dualcache_pays_a_full_forward_per_block_and_one_block_per_further_step(outside):
    result = decode("dualcache", gen_length=64, block_length=32, tokens_per_step=4)
    # per block of 32 at 4 per step: 1 refresh that commits too, then 7 steps of 32
    assert result.query_positions == outside["positions"] == 2 * (1064 + 7 * 32)
    assert result.forwards == {"refresh": 2, "denoise": 14}
    assert result.committing_forwards == outside["calls"] == 16


def test_prefixcache_pays_a_full_forward_per_block_and_the_whole_suffix_per_further_step(outside):
    result = decode("prefixcache", gen_length=64, block_length=32, tokens_per_step=4)
    assert result.query_positions == outside["positions"] == (1064 + 7 * 64) + (1064 + 7 * 32)
    assert result.forwards == {"refresh": 2, "denoise": 14}
    assert result.committing_forwards == outside["calls"] == 16


def test_block_pays_a_prefill_its_blocks_and_one_commit_forward_per_block_but_the_last(outside):
    prompt = PROMPT[:100]  # 12 whole blocks of 8, and 4 tokens inside the first block to decode
    result = decode("block", prompt, gen_length=20, tokens_per_step=2)
    # blocks 96..103 (4 open), 104..111, 112..119: 2, 4 and 4 steps of 8, two commit forwards of 8
    assert result.query_positions == outside["positions"] == 96 + (2 + 4 + 4) * 8 + 2 * 8
    assert result.forwards == {"prefill": 1, "denoise": 10, "commit": 2}
    assert (result.committing_forwards, outside["calls"]) == (10, 13)


def test_a_short_last_block_is_only_as_wide_as_it_is(outside):
    result = decode("dualcache", PROMPT[:10], gen_length=12, block_length=8)
    assert result.query_positions == outside["positions"] == (22 + 7 * 8) + (22 + 3 * 4)
    result = decode("block", PROMPT[:8], gen_length=12)
    assert result.query_positions == 8 + 8 * 8 + 8 + 4 * 4


def test_a_suffix_is_fed_whenever_the_canvas_is(outside):
    request = Request("a", prompt_ids=PROMPT[:10], suffix_ids=PROMPT[:5])
    count = {
        n: generate(n, [request], {"gen_length": 8, "block_length": 8})[0]["a"]
        for n in ("uncached", "prefixcache", "dualcache")
    }
    assert count["uncached"].query_positions == 8 * 23
    assert count["prefixcache"].query_positions == 23 + 7 * 13
    assert count["dualcache"].query_positions == 23 + 7 * 8
    assert outside["positions"] == 8 * 23 + 23 + 7 * 13 + 23 + 7 * 8


def test_guidance_doubles_the_query_positions_and_is_a_kind_of_its_own(outside):
    result = decode("uncached", PROMPT[:10], gen_length=8, block_length=8, cfg_scale=1.0)
    assert result.forwards == {"denoise": 8, "cfg": 8}
    assert result.query_positions == outside["positions"] == 2 * 8 * 18
    assert outside["calls"] == 8


@pytest.mark.parametrize("name", FAMILY_OF)
def test_the_log_counts_padded_forwards_as_the_wrapper_does_and_rows_only_what_is_theirs(name, outside):
    requests = [
        Request(str(n), prompt_ids=PROMPT[:p], settings={"gen_length": g})
        for n, (p, g) in enumerate([(30, 9), (3, 20), (17, 4)])
    ]
    results, log = generate(name, requests, {}, 2)
    assert log.batch_forwards == outside["calls"]
    assert sum(s.count * s.rows * s.width for s in log.shapes) == outside["positions"]
    own = sum(r.query_positions for r in results.values())
    assert own <= outside["positions"]
    outside.update(calls=0, positions=0)
    generate(name, requests, {}, 1)
    assert own == outside["positions"]


@pytest.mark.parametrize("name", FAMILY_OF)
def test_the_head_is_computed_only_where_a_decision_is_made(name):
    network, decided = model_of(FAMILY_OF[name]).module, []
    hook = network.lm_head.register_forward_hook(lambda module, args, out: decided.append(out.shape[0]))
    try:
        _, log = generate(name, [Request("a", prompt_ids=PROMPT[:16])], {"gen_length": 8})
    finally:
        hook.remove()
    # one token per step: 8 open positions, then 7, ... (ar: always the next one)
    assert decided == ([1] * 8 if name == "ar" else [8, 7, 6, 5, 4, 3, 2, 1])
    assert sum(shape.decided for shape in log.shapes) == sum(decided)
