import json
from math import exp
from pathlib import Path

import pytest

from dllm_audit.statistics.aup import ParallelPoint, accuracy_under_parallelism

RECORDED = Path(__file__).parents[1] / "golden" / "aup" / "cases.jsonl"
CASES = [json.loads(line) for line in RECORDED.read_text().splitlines()]


def aup(*points, best):
    return accuracy_under_parallelism([ParallelPoint(*point) for point in points], best)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['task']}-{case['method']}")
def test_aup_is_the_value_of_the_published_definition(case):
    points = [(point["tokens_per_forward"], point["accuracy_percent"]) for point in case["points"]]
    found = aup(*points, best=case["y_max"])
    if case["aup"] is None:
        assert found.value is None
        assert found.reason
    else:
        assert found.value == pytest.approx(case["aup"], abs=1e-6)


def test_every_recorded_case_is_tested_and_one_of_them_is_refused():
    assert len(CASES) == 81
    assert [case["aup"] for case in CASES].count(None) == 1


def test_aup_is_the_first_rectangle_unweighted_and_weighted_trapezoids_after_it():
    # 1 * 80, then a width of 2 between 80 (the best: weight 1) and 76 (weight exp(-3 * 0.05)).
    assert aup((1, 80), (3, 76), best=80).value == pytest.approx(80 + 2 * (80 + 76 * exp(-0.15)) / 2)


def test_a_point_in_between_that_loses_too_much_is_dropped():
    found = aup((1, 80), (2, 74), (3, 78), best=80)
    assert found.used == (ParallelPoint(1, 80), ParallelPoint(3, 78))
    assert found.value == aup((1, 80), (3, 78), best=80).value


def test_five_points_are_tolerated_and_more_at_the_fastest_setting_are_refused_with_the_loss():
    assert aup((1, 80), (2, 75), best=80).value is not None
    found = aup((6, 70), (1, 80), (2, 79), best=80)
    assert found.value is None
    assert found.reason == "refused: at 6 tokens per forward 10.0 points are lost, and AUP tolerates 5"


def test_no_points_and_accuracies_that_are_no_percentages_are_refused():
    with pytest.raises(ValueError, match=r"^AUP needs at least one point\.$"):
        accuracy_under_parallelism([], 80)
    with pytest.raises(ValueError, match=r"an accuracy in 0\.\.100 percent"):
        ParallelPoint(1, 101)
    with pytest.raises(ValueError, match=r"^The best accuracy on a task lies above 0 and up to 100 percent, not 0\.$"):
        aup((1, 80), best=0)
