import re
import xml.etree.ElementTree as ElementTree

from dllm_audit.report.charts import SpeedPoint, TimeBar, speed_and_quality, where_time_goes

POINTS = [
    SpeedPoint(1, "ar", 8.0, 7.0, 9.0, 0.8, 0.5, 0.95),
    SpeedPoint(2, "</svg><script>alert(1)</script>", 16.0, None, None, 0.6, None, None),
]


def test_a_chart_is_static_well_formed_and_follows_the_text_colour():
    chart = speed_and_quality(POINTS, "exact_match, strict-match", is_share=True)
    for svg in (chart.wide, chart.narrow):
        ElementTree.fromstring(svg)
        assert "<script" not in svg
        assert " style=" not in svg
        assert not re.search(r"(?:href|url\()", svg)
        assert 'fill="currentColor"' in svg


def test_every_point_carries_its_number_and_is_said_in_words():
    chart = speed_and_quality(POINTS, "exact_match", is_share=True)
    assert ">1</text>" in chart.wide
    assert "run 1 (ar) 8 tokens per second at 80 %" in chart.alt


def test_times_are_said_in_words_and_items_without_time_are_left_out():
    chart = where_time_goes([TimeBar(1, "ar", {"denoise": 0.3, "prefill": 0.1, "commit": 0.0})])
    assert chart.alt == "Mean seconds per request by item. run 1: prefill 0.1 s, denoise 0.3 s."
    assert ">commit</text>" not in chart.wide
    assert ">denoise</text>" in chart.wide


def test_a_point_without_a_rate_above_zero_breaks_no_chart():
    chart = speed_and_quality([SpeedPoint(1, "ar", 5.0, 0.0, 10.0, 0.0, 0.0, 0.3)], "valid", is_share=True)
    ElementTree.fromstring(chart.wide)
