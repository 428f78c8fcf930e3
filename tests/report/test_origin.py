"""The report says what a speed is worth: how strong its baseline is, where it comes from, and where it ends."""

import datetime as dt
import re
from html import unescape

import pytest

from dllm_audit.claims.registry import Registry
from dllm_audit.report.build import render
from dllm_audit.report.page import gather

NO_CLAIMS = Registry([], [])


def observed(seconds):
    sides = [
        {"name": name, "provenance": "reference", "tokens": 100, "equal": 4, "seconds": [each] * 5}
        for name, each in (("ours", 1.0), ("generate", seconds))
    ]
    return {"batch": 1, "prompts": 4, "gen_length": 64, "transformers": "5.24.0", "sides": sides}


@pytest.fixture
def swept(empty_store, build):
    """A command at two concurrencies, with a baseline that takes twice the seconds of transformers' generate."""
    for level, (ours, theirs) in {1: (1.5, 3.0), 4: (3.0, 1.5)}.items():
        row = build("run_row", f"ar-{level}", concurrency=level, role="baseline")
        row["manifest"] = {**row["manifest"], "library": observed(0.5)}
        build("add_run", empty_store, row, [build("generation")] * 6, [1] * 6, makespan=theirs,
              shapes=[build("shape", "denoise", 1, 1, 30, 1.0)])  # fmt: skip
        row = build("diffusion_row", f"dual-{level}", concurrency=level)
        build("add_run", empty_store, row, [build("diffusion_generation")] * 6, [1] * 6, makespan=ours,
              shapes=[build("shape", "denoise", 8, 1, 24, 1.0)])  # fmt: skip
    return empty_store


def section(store) -> str:
    """Text of the section, white space collapsed."""
    html = render(gather(store, NO_CLAIMS, made_at=dt.datetime(2026, 1, 2)))
    part = re.sub(r"<svg.*?</svg>", "", html[html.index('id="origin"') :].partition("</section>")[0], flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", part)).split())


def test_a_baseline_that_is_not_shown_to_be_weak_is_called_no_more_than_that(empty_store, build):
    row = build("run_row", "ar", role="baseline")
    row["manifest"] = {**row["manifest"], "library": observed(1.0)}
    build("add_run", empty_store, row, [build("generation")] * 6, [1] * 6, makespan=3.0)
    build(
        "add_run", empty_store, build("diffusion_row", "b"), [build("diffusion_generation")] * 6, [1] * 6, makespan=1.5
    )
    text = section(empty_store)
    assert "not shown to be weak The baseline is not shown to be weak: it runs at 1.00x" in text


def test_a_weak_baseline_is_named_and_decides_the_headline(swept):
    report = gather(swept, NO_CLAIMS)
    assert report.verdict.headline == (
        "Some diffusion runs were faster than autoregressive decoding, but than a weak baseline only."
    )
    assert any("weak baseline" in sentence for sentence in report.verdict.may_not)
    assert not any("faster" in sentence for sentence in report.verdict.may)
    assert "weak The baseline is weak: it runs at 0.50x the speed of transformers' generate" in section(swept)


def test_the_factors_of_every_speed_stand_beside_each_other_and_multiply(swept):
    first, second = gather(swept, NO_CLAIMS).tasks[0].origin.decompositions
    assert [factor.ratio for factor in first.factors] == ["1.25", "0.800", "2.00"]
    assert (first.ratio, second.ratio) == ("2.00", "0.500")
    assert "1.25x 1.00 against 0.800 tokens per forward 0.800x" in section(swept)


def test_the_sweep_has_its_crossover_its_prediction_and_a_chart_with_words(swept):
    text = section(swept)
    assert (
        "The baseline overtakes at 2 in flight (interval unknown: 1 of at least 5 repeats). The roofline predicts"
        in text
    )
    (row,) = gather(swept, NO_CLAIMS).tasks[0].origin.sweeps
    assert row.chart.alt == (
        "Answered tokens per second by requests in flight. dualcache, threshold 0.9 16 at 1, 8 at 4; ar 8 at 1, 16 at 4."
    )


def test_without_an_autoregressive_run_the_section_says_what_it_takes(empty_store, build):
    build("add_run", empty_store, build("diffusion_row", "r"), [build("diffusion_generation")], [1], makespan=1.0)
    assert "Nothing here can say: it takes an autoregressive run" in section(empty_store)


def test_a_factorial_has_its_sentence_and_the_quality_of_all_four(empty_store, build):
    for number, on in enumerate([(False, False), (True, False), (False, True), (True, True)]):
        row = build("diffusion_row", f"cell-{number}")
        row["manifest"] = {**row["manifest"], "factorial": dict(zip(("cache", "threshold"), on, strict=True))}
        row["settings"] = {**row["settings"], "threshold": 0.9 if on[1] else None}
        row["backend"] = "dualcache" if on[0] else "uncached"
        build(
            "add_run", empty_store, row, [build("diffusion_generation")] * 6, [1, 1, 1, 1, 1, 0], makespan=1.0 + number
        )
    text = section(empty_store)
    assert "Two changes: cache and threshold On speed: cache" in text
    assert text.count("83 %") == 4
