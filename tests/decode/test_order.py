"""Blocks cover the window exactly once, left to right."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dllm_audit import Blocks
from dllm_audit.decode.order import Span


def test_without_a_block_length_the_window_is_one_block():
    assert Blocks().spans(5, 21) == [Span(5, 21)]


def test_blocks_count_from_the_first_position_to_generate():
    assert Blocks(8).spans(5, 21) == [Span(5, 13), Span(13, 21)]


def test_a_last_block_may_be_short():
    assert Blocks(8).spans(5, 23) == [Span(5, 13), Span(13, 21), Span(21, 23)]


def test_a_block_longer_than_the_window_is_the_window():
    assert Blocks(32).spans(5, 12) == [Span(5, 12)]


def test_absolute_blocks_lie_on_the_grid_so_that_the_first_and_the_last_may_be_short():
    assert Blocks(8, "absolute").spans(5, 21) == [Span(5, 8), Span(8, 16), Span(16, 21)]


def test_absolute_blocks_after_a_prompt_of_whole_blocks_are_whole():
    assert Blocks(8, "absolute").spans(16, 32) == [Span(16, 24), Span(24, 32)]


def test_a_span_knows_its_width():
    assert Span(5, 13).width == 8


@pytest.mark.parametrize("aligned", ["prompt", "absolute"])
@given(st.integers(0, 70), st.integers(1, 70), st.integers(1, 40))
def test_every_position_of_the_window_is_in_exactly_one_block(aligned, start, length, block_length):
    spans = Blocks(block_length, aligned).spans(start, start + length)
    assert [column for span in spans for column in range(span.lo, span.hi)] == list(range(start, start + length))
    assert all(1 <= span.width <= block_length for span in spans)
