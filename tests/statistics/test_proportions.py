import pytest

from dllm_audit.statistics.proportions import wilson_interval


def test_wilson_interval_of_81_in_263_is_the_one_in_newcombe_1998_table_1():
    interval = wilson_interval(81, 263)
    assert interval.rate == pytest.approx(0.3080, abs=5e-5)
    assert (interval.low, interval.high) == pytest.approx((0.2553, 0.3662), abs=5e-5)


def test_wilson_interval_without_a_success_starts_at_zero_and_ends_at_z_squared_over_n_plus_z_squared():
    interval = wilson_interval(0, 10)
    assert interval.low == 0
    assert interval.high == pytest.approx(3.8415 / 13.8415, abs=1e-4)


def test_wilson_interval_refuses_more_successes_than_trials():
    with pytest.raises(ValueError, match=r"^Cannot take 3 successes of 2 trials: need"):
        wilson_interval(3, 2)


@pytest.mark.parametrize("trials", [1, 6, 50, 60, 500, 1319])
def test_an_interval_holds_its_rate_also_where_all_or_none_are_right(trials):
    for successes in (0, trials):
        found = wilson_interval(successes, trials)
        assert found.low <= found.rate <= found.high
