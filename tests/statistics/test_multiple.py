import numpy as np
import pytest

from dllm_audit.statistics.multiple import benjamini_hochberg


def test_the_15_tests_of_benjamini_and_hochberg_1995_section_3_2_give_4_discoveries():
    # The largest i with p_(i) <= 0.05 i / 15 is 4: 0.0095 <= 0.0133, while 0.0201 > 0.0167.
    p_values = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344]
    p_values += [0.0459, 0.3240, 0.4262, 0.5719, 0.6528, 0.7590, 1.0]
    assert benjamini_hochberg(p_values) == (True,) * 4 + (False,) * 11


def test_answers_come_in_the_order_of_the_p_values():
    assert benjamini_hochberg([0.9, 0.001, 0.5]) == (False, True, False)


def test_a_p_value_above_its_own_line_counts_when_a_larger_one_is_below_its_line():
    # 0.04 > 0.05 * 1 / 2, but 0.05 <= 0.05 * 2 / 2 carries both.
    assert benjamini_hochberg([0.04, 0.05]) == (True, True)


def test_one_p_value_at_the_rate_counts_and_no_p_values_give_no_answers():
    assert benjamini_hochberg([0.05]) == (True,)
    assert benjamini_hochberg([]) == ()


def test_of_200_tests_without_any_effect_something_counts_in_at_most_one_family_of_20():
    # Without effects every discovery is false, so the rate is that of families with any.
    generator = np.random.default_rng(20251129)
    families = [any(benjamini_hochberg(p.tolist())) for p in generator.random((1000, 200))]
    assert np.mean(families) <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / 1000)


@pytest.mark.parametrize("p_value", [-0.1, 1.1, float("nan")])
def test_what_is_no_probability_is_refused(p_value):
    with pytest.raises(ValueError, match=rf"^A p-value lies in 0\.\.1, not {p_value}\.$"):
        benjamini_hochberg([0.5, p_value])


def test_a_rate_in_percent_is_refused():
    with pytest.raises(ValueError, match=r"^A false discovery rate lies between 0 and 1, not 5\.$"):
        benjamini_hochberg([0.5], rate=5)
