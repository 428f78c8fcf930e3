"""Which columns each cache feeds to the model, and what they may look at."""

import pytest

from dllm_audit import BlockExactCache, CausalCache, DualCache, NoCache, PrefixCache
from dllm_audit.decode.cache import RowShape, Window
from dllm_audit.decode.order import Span

#: A prompt of 10, a window of 16, a suffix of 4; its second block of 8 is being decoded.
ROW = RowShape(start=10, end=26, length=30)
BLOCK = Span(18, 26)


def plan(cache, row=ROW, block=BLOCK):
    return [cache.begin(row), cache.open_block(row, block), cache.step(row, block), cache.close_block(row, block)]


def test_without_a_cache_every_step_feeds_the_whole_canvas():
    whole = Window("denoise", 0, 30, 30, may_commit=True, attention="full", cached=False)
    assert plan(NoCache()) == [None, None, whole, None]


def test_prefix_cache_refreshes_at_a_blocks_start_and_then_feeds_the_block_and_all_that_follows():
    refresh = Window("refresh", 0, 30, 30, may_commit=True)
    assert plan(PrefixCache()) == [None, refresh, Window("denoise", 18, 30, 30), None]


def test_dual_cache_refreshes_at_a_blocks_start_and_then_feeds_the_block_alone_with_prefix_and_suffix_visible():
    refresh = Window("refresh", 0, 30, 30, may_commit=True)
    assert plan(DualCache()) == [None, refresh, Window("denoise", 18, 26, 30), None]


@pytest.mark.parametrize("cache", [PrefixCache(), DualCache()])
def test_a_shifted_head_needs_one_token_of_left_context(cache):
    shifted = RowShape(start=10, end=26, length=30, shift=1)
    assert cache.step(shifted, BLOCK).lo == 17


@pytest.mark.parametrize("cache", [PrefixCache(first_alone=True), DualCache(first_alone=True)])
def test_the_program_for_dream_does_without_left_context_and_lets_the_refresh_decide_the_first_position(cache):
    shifted = RowShape(start=10, end=26, length=30, shift=1)
    assert cache.step(shifted, BLOCK).lo == 18
    assert cache.open_block(shifted, BLOCK) == Window("refresh", 0, 30, 30, first_only=True)


def test_nothing_stands_to_the_left_of_column_0():
    shifted = RowShape(start=0, end=16, length=16, shift=1)
    assert DualCache().step(shifted, Span(0, 8)).lo == 0


def test_causal_cache_prefills_the_prompt_and_then_feeds_the_newest_token():
    row = RowShape(start=10, end=12, length=12, shift=1)
    prefill = Window("prefill", 0, 10, 10, may_commit=True, attention="causal")
    assert plan(CausalCache(), row, Span(11, 12)) == [prefill, None, Window("denoise", 10, 11, 11), None]


GRID = RowShape(start=10, end=26, length=26, grid=8)


def test_block_cache_prefills_the_whole_blocks_of_the_prompt_and_commits_nothing_by_it():
    assert BlockExactCache().begin(GRID) == Window("prefill", 0, 8, 8, may_commit=False, attention="block")


@pytest.mark.parametrize("start", [0, 1, 7])
def test_block_cache_has_no_prefill_for_a_prompt_shorter_than_a_block(start):
    assert BlockExactCache().begin(RowShape(start=start, end=start + 8, length=start + 8, grid=8)) is None


def test_block_cache_feeds_the_prompt_tokens_that_share_the_first_block():
    assert BlockExactCache().step(GRID, Span(10, 16)) == Window("denoise", 8, 16, 16)


def test_block_cache_writes_the_keys_of_a_finished_block_in_a_forward_that_commits_nothing():
    commit = Window("commit", 16, 24, 24, may_commit=False)
    assert BlockExactCache().close_block(GRID, Span(16, 24)) == commit


def test_block_cache_writes_no_keys_for_the_last_block_of_a_request():
    assert BlockExactCache().close_block(GRID, Span(24, 26)) is None


@pytest.mark.parametrize(
    ("cache", "attention", "supports_suffix"),
    [
        (NoCache(), "bidirectional", True),
        (PrefixCache(), "bidirectional", True),
        (DualCache(), "bidirectional", True),
        (BlockExactCache(), "block", False),
        (CausalCache(), "causal", False),
    ],
)
def test_only_bidirectional_caches_can_infill(cache, attention, supports_suffix):
    assert (cache.attention, cache.supports_suffix) == (attention, supports_suffix)
