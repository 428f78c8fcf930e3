"""The roofline by hand: a small network whose every byte and FLOP can be counted on paper."""

from dataclasses import replace

import pytest

from dllm_audit.measure.roofline import DeviceSpeed, Roofline, Work, touched_share, window_work
from dllm_audit.models.dimensions import Dimensions

#: 1,000 bytes/s and 2,000 FLOP/s: times are then easy to read.
SLOW = DeviceSpeed("slow", 1000.0, 2000.0, "datasheet")
#: Two layers of two query heads and one head of keys and values, 4 wide.
SMALL = Dimensions(body=100, head=40, embedding=40, hidden=5, vocab=8, layers=2, heads=2, kv_heads=1, head_dim=4)


def test_a_forward_reads_the_weights_once_and_the_embedding_by_looked_up_rows():
    # 100 of the body + 3 rows of 5, two bytes each; no logits, so no head.
    assert Roofline(SMALL, 2, SLOW).bound(Work(3)).bytes == (100 + 3 * 5) * 2


def test_the_head_is_read_where_logits_are_computed_and_multiplied_with_those_positions_alone():
    bound = Roofline(SMALL, 2, SLOW).bound(Work(3, decided=2))
    assert bound.bytes == (100 + 40 + 15) * 2
    assert bound.flops == 2 * (3 * 100 + 2 * 40)


def test_keys_and_values_are_read_and_written_by_columns_of_all_layers():
    # A column is 2 (key and value) x 2 layers x 1 head x 4 wide = 16 numbers.
    bound = Roofline(SMALL, 2, SLOW).bound(Work(1, columns_read=10, columns_written=1))
    assert bound.bytes == (100 + 5 + 11 * 16) * 2


def test_attention_multiplies_each_query_head_twice_with_every_column_seen():
    # 2 layers x 2 query heads x 4 wide, a product with keys and one with values, 2 FLOPs each.
    assert Roofline(SMALL, 2, SLOW).bound(Work(1, pairs=10)).flops == 2 * 100 + 10 * 2 * 2 * 4 * 2 * 2


def test_a_bound_is_the_longer_of_reading_and_multiplying():
    body = Dimensions(1000)
    one, many = (Roofline(body, 2, SLOW).bound(Work(n)) for n in (1, 4))
    # 2,000 bytes take 2 s; a position is 2,000 FLOPs, 1 s.
    assert (one.seconds, one.limited_by) == (2.0, "memory")
    assert (many.seconds, many.limited_by) == (4.0, "compute")


def test_attention_is_left_out_of_a_model_of_which_only_the_size_is_known():
    bound = Roofline(Dimensions.of_size(1000), 2, SLOW).bound(Work(1, 1, pairs=1e6, columns_read=1e6))
    assert (bound.bytes, bound.flops) == (2000, 2000)


@pytest.mark.parametrize(
    ("window", "work"),
    [
        # The block of a dual cache: 8 of 40 columns, the other 32 remembered.
        (window_work(8, 40, 5), Work(8, 5, pairs=320, columns_read=32, columns_written=8)),
        # A whole canvas without a cache keeps nothing.
        (window_work(40, 40, 5, cached=False), Work(40, 5, pairs=1600)),
        # One token of autoregressive decoding sees itself too.
        (window_work(1, 10, 1), Work(1, 1, pairs=10, columns_read=9, columns_written=1)),
        # A causal prefill of 4: 1 + 2 + 3 + 4 pairs.
        (window_work(4, 4, 1, "causal"), Work(4, 1, pairs=10, columns_written=4)),
        # Block-causal in blocks of 2: 2 + 2 + 4 + 4 pairs.
        (window_work(4, 4, 0, "block", grid=2), Work(4, 0, pairs=12, columns_written=4)),
        # A prompt shorter than a block sees itself alone.
        (window_work(4, 4, 0, "block", grid=8), Work(4, 0, pairs=16, columns_written=4)),
    ],
)
def test_what_a_window_computes(window, work):
    assert window == work


def test_rows_that_share_a_forward_add_their_work_and_share_the_weights():
    assert window_work(1, 10, 1).times(3) == Work(3, 3, pairs=30, columns_read=27, columns_written=3)


def test_thirty_two_positions_with_8_of_64_experts_touch_99_percent_of_them():
    assert touched_share(64, 8, 1) == 8 / 64
    assert touched_share(64, 8, 32) == pytest.approx(0.986, abs=0.0005)


def test_a_mixture_reads_the_distinct_experts_and_multiplies_the_chosen_ones():
    # 2 of 4 experts of 100 each: two positions touch 1 - (1/2)^2 = 3/4 of them.
    mixture = Roofline(Dimensions(10, experts=400, expert_count=4, experts_per_token=2), 1, SLOW)
    assert mixture.bound(Work(2)).bytes == 10 + 300
    assert mixture.bound(Work(2)).flops == 2 * 2 * (10 + 200)
    assert mixture.weights_read(1) == mixture.dimensions.active == 210


def test_the_knee_is_where_multiplying_takes_as_long_as_reading():
    # 2 bytes a weight take 2 ms, a position's 2 FLOPs 1 ms: two positions, whatever the size.
    assert Roofline(Dimensions(1000), 2, SLOW).knee() == pytest.approx(2.0)
    # Of a mixture with 1 of 4 experts: reads 1 - (3/4)^n of 400 bytes, multiplies 2 n x 100 at twice that rate.
    mixture = Roofline(Dimensions(0, experts=400, expert_count=4, experts_per_token=1), 2, SLOW)
    knee = mixture.knee()
    assert 400 * 2 * (1 - 0.75**knee) / 1000 == pytest.approx(2 * knee * 100 / 2000)
    # One position is bound by multiplying already.
    assert Roofline(Dimensions(1000), 0.5, SLOW).knee() == 1.0


def test_weights_that_fit_into_the_cache_need_not_be_read():
    small, large = (Roofline(Dimensions(1000), 2, replace(SLOW, cache_bytes=n)) for n in (2000, 1999))
    assert (small.lives_in_cache, large.lives_in_cache) == (True, False)
    assert small.bound(Work(1)).seconds == 1.0  # 2,000 FLOPs alone
    assert small.knee() is None
    assert large.bound(Work(1)).seconds == 2.0


def test_two_devices_halve_every_bound():
    one, two = (Roofline(Dimensions(1000), 2, SLOW.times(n)) for n in (1, 2))
    for positions in (1, 2, 7):
        assert two.bound(Work(positions)).seconds == one.bound(Work(positions)).seconds / 2


def test_facts_of_a_manifest_are_read_back_and_damaged_ones_are_none():
    assert Dimensions.of_facts(SMALL.as_dict()) == SMALL
    assert DeviceSpeed.of_facts(SLOW.as_dict()) == SLOW
    for broken in (None, [], {}, {"body": -1}, {"body": float("nan")}, {"body": True}, {"body": 1, "soul": 1}):
        assert Dimensions.of_facts(broken) is None
    for change in ({"bandwidth": 0}, {"peak": "fast"}, {"cache_bytes": -1}, {"name": 3}, {"colour": 1}):
        assert DeviceSpeed.of_facts({**SLOW.as_dict(), **change}) is None
