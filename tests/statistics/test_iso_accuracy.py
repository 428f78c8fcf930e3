import numpy as np
import pytest

from dllm_audit.statistics.iso_accuracy import MeasuredSetting, iso_accuracy_latency


def setting(name, right, seconds, documents=100):
    """`right` of the documents answered correctly, each in `seconds`."""
    return MeasuredSetting(name, [n < right for n in range(documents)], [seconds] * documents)


def latency(accuracy, *settings):
    return iso_accuracy_latency(settings, accuracy, generator=np.random.default_rng(20251129))


FAST, SLOW = setting("0.5", 50, 1.0), setting("0.9", 100, 3.0)


def test_between_two_settings_the_latency_lies_on_the_line():
    # 50 % at 1 s and 100 % at 3 s: 60 % at 1 + 0.2 * 2.
    found = latency(0.6, FAST, SLOW)
    assert found.seconds == pytest.approx(1.4)
    assert found.between == ("0.5", "0.9")


def test_a_setting_that_has_the_accuracy_is_the_answer():
    assert latency(1.0, FAST, SLOW).between == ("0.9", "0.9")
    assert latency(0.5, FAST, SLOW).seconds == 1.0


def test_a_setting_that_no_mixture_needs_is_passed_over():
    # 75 % at 3.5 s is slower than half of each, 2 s.
    found = latency(0.75, FAST, setting("0.7", 75, 3.5), SLOW)
    assert (found.seconds, found.between) == (pytest.approx(2.0), ("0.5", "0.9"))


def test_a_setting_that_is_more_accurate_and_faster_is_taken_as_it_is():
    found = latency(0.6, setting("bad", 50, 9.0), SLOW)
    assert (found.seconds, found.between) == (3.0, ("0.9", "0.9"))


def test_an_accuracy_that_no_setting_reaches_is_refused_with_the_best_one():
    found = latency(0.8, FAST, setting("0.6", 75, 2.0))
    assert (found.seconds, found.low, found.high, found.between) == (None, None, None, None)
    assert found.reason == "no measured setting reaches 80.0 %: the most accurate one, 0.6, has 75.0 %"


def test_an_accuracy_below_every_setting_is_refused_as_well():
    found = latency(0.3, FAST, SLOW)
    assert found.seconds is None
    assert found.reason == (
        "every measured setting is more accurate than 30.0 %: the least accurate one, 0.5, has 50.0 %; "
        "a faster one would have to be measured"
    )


def test_the_interval_against_a_reference_on_the_same_documents_moves_with_it():
    # The reference is the setting itself: its accuracy moves in the same draws, so only the latency is left to vary.
    rng = np.random.default_rng(1)
    right = rng.random(200) < 0.7
    own = MeasuredSetting("own", right, rng.gamma(4, 0.25, 200))
    better = MeasuredSetting("better", np.ones(200, bool), np.full(200, 5.0))
    worse = MeasuredSetting("worse", np.zeros(200, bool), np.full(200, 0.1))
    found = latency(right, worse, own, better)
    assert found.accuracy == pytest.approx(right.mean())
    assert found.seconds == pytest.approx(np.mean(own.seconds))
    half = 1.96 * np.std(own.seconds) / np.sqrt(200)
    assert (found.low, found.high) == pytest.approx((found.seconds - half, found.seconds + half), rel=0.03)
    fixed = latency(float(right.mean()), worse, own, better)
    assert fixed.high - fixed.low > 1.5 * (found.high - found.low)


def test_an_end_that_leaves_the_measured_accuracies_is_unknown():
    found = latency(0.74, FAST, setting("0.6", 75, 2.0))
    assert found.seconds == pytest.approx(1 + 0.24 / 0.25)
    assert found.low is not None
    assert found.high is None
    assert found.reason == "the interval leaves the measured accuracies"


def test_few_documents_have_no_interval():
    found = latency(0.6, setting("a", 5, 1.0, 10), setting("b", 10, 3.0, 10))
    assert found.seconds == pytest.approx(1.4)
    assert found.reason == "interval unknown: 10 of at least 50 documents"


def test_settings_on_other_documents_and_impossible_accuracies_are_refused():
    with pytest.raises(ValueError, match="needs the same documents"):
        latency(0.6, FAST, setting("b", 10, 3.0, 10))
    with pytest.raises(ValueError, match=r"^An accuracy is a share in 0\.\.1, not 60\.$"):
        latency(60, FAST, SLOW)
    with pytest.raises(ValueError, match=r"^An answer is right or wrong\.$"):
        latency(0.6, MeasuredSetting("a", [0.5] * 100, [1.0] * 100), SLOW)
