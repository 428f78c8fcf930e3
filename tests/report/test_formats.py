import pytest

from dllm_audit.analysis.figures import Figure
from dllm_audit.report.formats import interval, number, percent, points, probability, seconds, token_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0"),
        (0.0123456, "0.0123"),
        (9.996, "10.0"),
        (99.96, "100"),
        (1525.6, "1,526"),
        (-2.5, "−2.50"),
        (16, "16.0"),
    ],
)
def test_a_number_has_three_significant_digits(value, text):
    assert number(value) == text


def test_shares_points_and_durations():
    assert percent(0.125, 1) == "12.5 %"
    assert points(-0.05) == "−5.0"
    assert points(0.05) == "+5.0"
    assert seconds(0.0123) == "12.3 ms"
    assert seconds(1.5) == "1.50 s"


def test_a_probability_has_no_row_of_zeros():
    assert [probability(p) for p in (None, 1.0, 0.0703, 0.0004, 0.00009, 3.6e-12)] == [
        "–", "1.0", "0.070", "0.00040", "< 0.0001", "< 0.0001",
    ]  # fmt: skip


def test_an_interval_that_is_open_at_one_end_says_which():
    assert interval(Figure(2, "s", "measured", 1, 3), number) == "1.00 to 3.00"
    assert interval(Figure(2, "s", "measured", 1, None), number) == "≥ 1.00"
    assert interval(Figure(2, "s", "measured"), number) == ""


def test_a_token_shows_its_spaces_and_hides_nothing():
    assert token_text(" a\n\u202e") == "␣a⏎\\u202e"
    assert token_text("") == "∅"
