import pytest

from dllm_audit.statistics.latency import latency_percentile


def test_the_median_of_five_is_the_third():
    assert latency_percentile([5.0, 1.0, 4.0, 2.0, 3.0], 50).seconds == 3.0


def test_the_95th_percentile_is_the_smallest_latency_that_95_percent_do_not_exceed():
    assert latency_percentile([float(i) for i in range(1, 101)], 95).seconds == 95.0


def test_a_high_percentile_of_few_requests_has_no_upper_bound():
    tail = latency_percentile([1.0, 2.0, 3.0, 4.0, 5.0], 99)
    assert tail.seconds == 5.0
    assert tail.high is None
    assert tail.low is not None


def test_the_interval_of_the_median_of_a_hundred_runs_from_the_40th_to_the_61st():
    # Binomial(100, 1/2): P(X <= 39) = 0.0176, P(X <= 40) = 0.0284: ranks 40 and 61 leave under 2.5 % a side.
    median = latency_percentile([float(i) for i in range(1, 101)], 50)
    assert (median.low, median.high) == (40.0, 61.0)


@pytest.mark.parametrize("seconds", [[], [1.0, float("nan")], [-1.0]])
def test_latencies_that_are_not_times_are_refused(seconds):
    with pytest.raises(ValueError, match="finite, not negative, and at least one"):
        latency_percentile(seconds, 50)
