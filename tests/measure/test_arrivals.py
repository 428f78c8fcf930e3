"""When requests arrive: never before a row is free, all at once, or by chance."""

from __future__ import annotations

import pytest

from dllm_audit.errors import UsageError
from dllm_audit.measure.load import CLOSED, Load


def test_in_a_closed_loop_nothing_arrives_before_a_row_is_free():
    assert CLOSED.arrivals(range(3), seed=0) is None


def test_offline_everything_is_there_at_once():
    assert Load("offline").arrivals(range(3), seed=0) == (0.0, 0.0, 0.0)


def test_in_an_open_loop_the_pauses_are_exponential_with_the_stated_mean():
    moments = Load("open", 4.0).arrivals(range(20_000), seed=1)
    pauses = [b - a for a, b in zip((0.0, *moments), moments, strict=False)]
    assert all(pause >= 0 for pause in pauses)
    # Mean and standard deviation of an exponential are both 1/rate; their standard errors here are about 0.002.
    mean = sum(pauses) / len(pauses)
    deviation = (sum((p - mean) ** 2 for p in pauses) / len(pauses)) ** 0.5
    assert mean == pytest.approx(0.25, abs=0.008)
    assert deviation == pytest.approx(0.25, abs=0.012)


def test_arrivals_hang_on_the_seed_and_the_place_alone():
    load = Load("open", 2.0)
    assert load.arrivals(range(5), 7) == load.arrivals(range(5), 7)
    assert load.arrivals(range(5), 7) != load.arrivals(range(5), 8)
    first, second, third = load.arrivals(range(3), 7)
    # What is left after an interruption comes with the pauses that it had.
    assert load.arrivals([0, 2], 7) == pytest.approx((first, first + (third - second)))


@pytest.mark.parametrize(
    ("kind", "rate", "said"),
    [
        ("ofline", None, "There is no load 'ofline'. Did you mean 'offline'?"),
        ("open", None, "An open loop needs the requests that arrive per second: say --arrival-rate R."),
        ("offline", 2.0, "arrival_rate=2 says when requests arrive, and load 'offline' says otherwise. Leave one of them out."),
        ("open", 0.0, "arrival_rate=0: requests must arrive at a rate above 0 per second."),
        ("open", 1e-300, "arrival_rate=1e-300: that is less than a request a day, and nobody waits for it. Give at least 1e-05."),
        ("open", float("inf"), "arrival_rate=inf: requests must arrive at a rate above 0 per second."),
        ("open", float("nan"), "arrival_rate=nan: requests must arrive at a rate above 0 per second."),
    ],
)  # fmt: skip
def test_a_load_that_makes_no_sense_is_refused(kind, rate, said):
    with pytest.raises(UsageError) as error:
        Load(kind, rate)
    assert str(error.value) == said
