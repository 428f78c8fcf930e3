import numpy as np
import pytest

from dllm_audit.statistics.crossover import crossover_concurrency
from dllm_audit.statistics.throughput import Batch

EVEN = (1.0,) * 6
NOISE = (0.94, 1.06, 0.98, 1.02, 0.97, 1.03)


def sweep(concurrencies, ratios, noise=EVEN):
    """A sweep in which the candidate has `ratios` times the baseline's 100 tokens/s."""
    candidate = [[[Batch(100 * ratio * factor, 1.0)] for factor in noise] for ratio in ratios]
    baseline = [[[Batch(100, 1.0)] for _ in noise] for _ in ratios]
    return crossover_concurrency(concurrencies, candidate, baseline, generator=np.random.default_rng(20251129))


def test_the_baseline_overtakes_halfway_on_the_logarithm_between_2x_and_half():
    # log 2 at 4 and -log 2 at 16: zero in the middle of log 4 and log 16.
    found = sweep([1, 4, 16], [4, 2, 0.5])
    assert found.verdict == "overtakes"
    assert found.concurrency == pytest.approx(8)
    assert (found.low, found.high) == pytest.approx((8, 8))
    assert found.ratios == pytest.approx((4, 2, 0.5))


def test_the_interval_holds_every_concurrency_where_equally_fast_is_not_excluded():
    # Noise n_r is the same at every concurrency: the log ratio is a straight line plus mean(n) -+ t s / sqrt(6).
    found = sweep([1, 4, 16], [4, 2, 0.5], NOISE)
    logs = np.log(NOISE)
    half = 2.5706 * logs.std(ddof=1) / np.sqrt(6)  # t of 5 degrees of freedom
    slope = np.log(4) / np.log(4)  # the log ratio falls by log 4 while the log concurrency rises by log 4
    assert found.low == pytest.approx(found.concurrency * np.exp(-half / slope), rel=0.01)
    assert found.high == pytest.approx(found.concurrency * np.exp(half / slope), rel=0.01)
    assert found.sentence == "The baseline overtakes at 8 in flight (undecided from 7.64 to 8.38)."


def test_none_up_to_the_largest_concurrency_is_a_result():
    found = sweep([1, 4, 16], [4, 3, 2], NOISE)
    assert (found.verdict, found.concurrency, found.low, found.high) == ("none", None, None, None)
    assert found.sentence == (
        "None up to 16: the candidate is faster at every measured concurrency (decided at every measured concurrency)."
    )


def test_none_that_is_not_decided_at_the_end_has_an_interval_that_leaves_the_range():
    found = sweep([1, 4, 16], [4, 2, 1.01], NOISE)
    assert (found.verdict, found.high) == ("none", None)
    assert 14 < found.low < 16
    assert found.sentence.endswith("(undecided from 14.9 to 16 or more).")


def test_a_sweep_that_is_undecided_at_both_ends_is_not_called_undecided_everywhere():
    found = sweep([1, 4, 16], [1.01, 3, 1.01], NOISE)
    assert (found.verdict, found.low, found.high, found.reason) == ("none", None, None, "")
    assert found.sentence.endswith(" (undecided from 1 or fewer to 16 or more).")


def test_a_baseline_that_is_faster_from_the_start_leaves_nothing_to_overtake():
    found = sweep([1, 4, 16], [0.9, 0.5, 0.2])
    assert (found.verdict, found.concurrency) == ("behind", None)
    assert found.sentence.startswith("The baseline is faster from 1 in flight on")


def test_sides_that_change_places_twice_are_unclear_and_the_first_loss_is_named():
    found = sweep([1, 4, 16, 64], [2, 0.5, 2, 0.5])
    assert found.verdict == "unclear"
    assert found.concurrency == pytest.approx(2)


def test_fewer_than_five_repeats_give_a_crossover_without_an_interval():
    found = sweep([1, 4, 16], [4, 2, 0.5], EVEN[:4])
    assert found.concurrency == pytest.approx(8)
    assert (found.low, found.high) == (None, None)
    assert found.sentence == "The baseline overtakes at 8 in flight (interval unknown: 4 of at least 5 repeats)."


@pytest.mark.parametrize("concurrencies", [[4], [4, 1], [0, 4], [4, 4]])
def test_a_sweep_is_two_or_more_rising_concurrencies(concurrencies):
    with pytest.raises(ValueError, match="A sweep needs two or more rising concurrencies from 1 on"):
        sweep(concurrencies, [1.0] * len(concurrencies))
