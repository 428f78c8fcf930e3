import numpy as np
import pytest

from dllm_audit.statistics.throughput import Batch, speedup_interval, throughput_interval


def generator():
    return np.random.default_rng(20251129)


def repeats_of(tokens_per_second, batches=4, seconds=2.0):
    return [[Batch(rate * seconds, seconds)] * batches for rate in tokens_per_second]


def test_throughput_is_a_ratio_of_sums_not_a_mean_of_ratios():
    # 100 tokens in 1 s and 100 tokens in 9 s: 20 tok/s, while the mean of 100 and 11.1 would say 56.
    result = throughput_interval([[Batch(100, 1), Batch(100, 9)]], generator=generator())
    assert result.ratio == 20


def test_fewer_than_five_repeats_give_an_unknown_interval_not_a_narrow_one():
    result = throughput_interval(repeats_of([100.0, 100.1, 99.9]), generator=generator())
    assert (result.low, result.high) == (None, None)
    assert result.reason == "unknown: 3 of at least 5 repeats"


def test_batches_of_few_repeats_still_give_an_interval_that_says_it_is_over_batches():
    rates = [90.0, 95.0, 100.0, 105.0, 110.0, 100.0]
    result = throughput_interval([[Batch(r, 1.0) for r in rates]], level="batch", generator=generator())
    assert (result.level, result.clusters, result.reason) == ("batch", 6, "")
    assert result.low is not None
    assert result.high is not None
    assert result.low < result.ratio == 100 < result.high


def test_variation_between_repeats_widens_the_interval_although_the_batches_inside_each_agree():
    drifting = repeats_of([80.0, 90.0, 100.0, 110.0, 120.0], batches=50)
    by_repeat = throughput_interval(drifting, generator=generator())
    by_batch = throughput_interval(drifting, level="batch", generator=generator())
    assert by_repeat.high - by_repeat.low > 3 * (by_batch.high - by_batch.low)


def test_a_slow_minute_that_meets_both_sides_leaves_the_paired_speedup_exact():
    baseline = repeats_of([50.0, 40.0, 60.0, 45.0, 55.0])
    candidate = repeats_of([100.0, 80.0, 120.0, 90.0, 110.0])
    result = speedup_interval(candidate, baseline, generator=generator())
    assert (result.ratio, result.low, result.high) == pytest.approx((2.0, 2.0, 2.0))


def test_sides_with_different_numbers_of_repeats_cannot_be_paired():
    with pytest.raises(ValueError, match=r"as many repeat clusters of the candidate \(2\) as of the baseline \(3\)"):
        speedup_interval(repeats_of([1, 1]), repeats_of([1, 1, 1]), generator=generator())


def test_exchanging_the_sides_gives_the_reciprocal_interval():
    ours, theirs = repeats_of([90.0, 110.0, 100.0, 95.0, 120.0]), repeats_of([50.0, 40.0, 60.0, 45.0, 55.0])
    forward = speedup_interval(ours, theirs, generator=generator())
    backward = speedup_interval(theirs, ours, generator=generator())
    assert (backward.low, backward.high) == pytest.approx((1 / forward.high, 1 / forward.low))


def test_a_repeat_without_tokens_has_no_speedup():
    with pytest.raises(ValueError, match=r"^A repeat produced no tokens, so its speed-up is undefined\.$"):
        speedup_interval(repeats_of([1.0]), repeats_of([0.0]), generator=generator())


def test_a_batch_without_seconds_is_refused():
    with pytest.raises(ValueError, match="seconds > 0"):
        Batch(10, 0)


def test_the_same_generator_gives_the_same_interval():
    repeats = repeats_of([80.0, 90.0, 100.0, 110.0, 120.0])
    assert throughput_interval(repeats, generator=generator()) == throughput_interval(repeats, generator=generator())


@pytest.mark.parametrize("repeats", [5, 12])
def test_the_interval_over_repeats_covers_the_true_throughput_about_95_times_in_100(repeats):
    draw = generator()
    covered = 0
    for _ in range(1000):
        clock = draw.normal(100, 5, size=repeats)  # drift between repeats
        runs = [[Batch(max(1.0, draw.normal(rate, 10)), 1.0) for _ in range(6)] for rate in clock]
        interval = throughput_interval(runs, draws=500, generator=draw)
        covered += interval.low <= 100 <= interval.high
    assert 0.93 <= covered / 1000 <= 0.97


def test_batches_are_drawn_inside_their_repeat_so_a_difference_between_repeats_adds_nothing():
    # Each repeat has equal batches, so any draw inside it gives the same sums; drawing across both would not.
    result = throughput_interval(repeats_of([50.0, 150.0], batches=6), level="batch", generator=generator())
    assert (result.ratio, result.low, result.high, result.clusters) == (100.0, 100.0, 100.0, 12)


def test_nested_draws_see_variation_between_repeats_between_batches_and_between_requests():
    flat = Batch(200, 2)
    uneven_batches = [Batch(100, 1), Batch(300, 3 - 2)]
    uneven_requests = Batch(200, 2, requests=(Batch(50, 1), Batch(150, 1)))
    for repeats, varies in (
        ([[flat, flat]] * 5, False),
        ([[flat, flat]] * 4 + [[Batch(100, 2)] * 2], True),
        ([uneven_batches] * 5, True),
        ([[uneven_requests] * 2] * 5, True),
    ):
        result = throughput_interval(repeats, level="nested", generator=generator())
        assert (result.high - result.low > 1e-9) is varies


def test_whole_repeats_see_nothing_of_what_varies_inside_all_of_them_alike():
    result = throughput_interval([[Batch(100, 1), Batch(300, 1)]] * 5, generator=generator())
    assert (result.low, result.high) == (200.0, 200.0)


def test_crossed_draws_take_the_same_places_of_every_repeat():
    # A slow document is slow in every repeat: repeats agree, documents do not.
    documents = [Batch(100, 1), Batch(100, 2), Batch(100, 1), Batch(100, 4), Batch(100, 2)]
    crossed = throughput_interval([documents] * 6, level="crossed", generator=generator())
    one = throughput_interval([documents], level="batch", generator=generator())
    assert (crossed.low, crossed.high) == pytest.approx((one.low, one.high), rel=0.05)
    assert crossed.clusters == 6


def test_crossed_draws_need_five_of_both_and_the_same_batches_everywhere():
    few = throughput_interval(repeats_of([1.0] * 9, batches=3), level="crossed", generator=generator())
    assert (few.low, few.reason) == (None, "unknown: 3 of at least 5 batches")
    with pytest.raises(ValueError, match=r"only where each has the same batches, not \[1, 2\] of them"):
        throughput_interval([[Batch(1, 1)], [Batch(1, 1)] * 2], level="crossed", generator=generator())


def test_nested_draws_of_fewer_than_five_repeats_are_unknown_however_many_requests_there_are():
    result = throughput_interval(repeats_of([100.0] * 4, batches=500), level="nested", generator=generator())
    assert (result.low, result.high, result.reason) == (None, None, "unknown: 4 of at least 5 repeats")


def test_a_batch_holds_the_sums_of_its_requests():
    with pytest.raises(ValueError, match=r"^The tokens of a batch \(3\) are those of its requests together \(2\)\.$"):
        Batch(3, 2, requests=(Batch(1, 1), Batch(1, 1)))


def test_sides_whose_repeats_have_other_batches_are_paired_by_whole_repeats_only():
    ours, theirs = repeats_of([100.0] * 5, batches=2), repeats_of([50.0] * 5, batches=3)
    assert speedup_interval(ours, theirs, generator=generator()).ratio == pytest.approx(2.0)
    with pytest.raises(ValueError, match="paired only where every repeat has as many on all sides"):
        speedup_interval(ours, theirs, level="nested", generator=generator())
