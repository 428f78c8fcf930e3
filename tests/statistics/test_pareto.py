import pytest

from dllm_audit.statistics.pareto import Estimate, OperatingPoint, pareto_front


def point(name, speed, quality, spread=0.0):
    def estimate(value):
        return Estimate(value) if spread is None else Estimate(value, value - spread, value + spread)

    return OperatingPoint(name, estimate(speed), estimate(quality))


def places(*points):
    return {place.point.name: place for place in pareto_front(points)}


def test_a_run_is_dominated_by_every_run_that_is_better_in_both():
    found = places(point("a", 10, 0.8), point("b", 20, 0.9), point("c", 30, 0.85), point("d", 5, 0.95))
    assert found["a"].dominated_by == ("b", "c")
    assert [name for name, place in found.items() if not place.dominated_by] == ["b", "c", "d"]
    assert {name: place.verdict for name, place in found.items()} == {
        "a": "dominated", "b": "on the front", "c": "on the front", "d": "on the front"
    }  # fmt: skip


def test_equal_in_one_and_better_in_the_other_dominates_by_value_and_is_open_by_interval():
    found = places(point("a", 10, 0.8, 0.01), point("b", 20, 0.8, 0.01))
    assert (found["a"].dominated_by, found["a"].verdict) == (("b",), "open")
    assert (found["b"].dominated_by, found["b"].verdict) == ((), "on the front")


def test_runs_that_are_equal_in_both_do_not_dominate_each_other_and_nothing_is_decided():
    found = places(point("a", 10, 0.8, 0.01), point("b", 10, 0.8, 0.01))
    assert [(place.dominated_by, place.verdict) for place in found.values()] == [((), "open")] * 2


def test_intervals_that_overlap_leave_open_what_the_values_say():
    found = places(point("a", 10, 0.8, 0.06), point("b", 20, 0.9, 0.06))
    assert (found["a"].dominated_by, found["a"].verdict) == (("b",), "open")


def test_an_unknown_interval_decides_nothing():
    found = places(point("a", 10, 0.8, None), point("b", 20, 0.9, None))
    assert [place.verdict for place in found.values()] == ["open", "open"]


def test_a_single_run_is_on_the_front():
    assert places(point("a", 10, 0.8, None))["a"].verdict == "on the front"


def test_two_runs_of_one_name_and_an_interval_beside_its_value_are_refused():
    with pytest.raises(ValueError, match=r"^Two runs are called 'a'"):
        pareto_front([point("a", 1, 1), point("a", 2, 2)])
    with pytest.raises(ValueError, match="An interval holds its value"):
        Estimate(3, 1, 2)
    with pytest.raises(ValueError, match="An interval holds its value"):
        Estimate(float("nan"))
