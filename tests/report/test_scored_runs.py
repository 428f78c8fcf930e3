"""Tasks that have given answers scored, in the report: requests instead of tokens, and which choices are noise."""

from __future__ import annotations

import pytest

from dllm_audit.claims.registry import Registry
from dllm_audit.report.build import render
from dllm_audit.report.page import gather
from dllm_audit.store.database import Store

#: Log-likelihood and error of two answers of each document; the first is right. In one of six the choice is noise.
DOCUMENTS = [[(-1.0, 0.1), (-1.1, 0.1)], *[[(-1.0, 0.1), (-4.0, 0.1)]] * 4, [(-2.0, 0.0), (-1.0, 0.0)]]


@pytest.fixture(scope="module")
def html(tmp_path_factory, build):
    """A diffusion run of 2 requests a second and an autoregressive one of 8, on one task."""
    with Store.open(tmp_path_factory.mktemp("scored") / "results.duckdb", write=True) as store:
        build("add_scored_run", store, build("diffusion_row", "ours"), DOCUMENTS, seconds=0.5)
        build("add_scored_run", store, build("run_row", "theirs"), DOCUMENTS, seconds=0.125)
        return render(gather(store, Registry([], [])))


def section(html: str, name: str) -> str:
    begins = html.index(f'<section id="{name}"')
    return html[begins : html.index("</section>", begins)]


def test_speed_is_in_requests_and_quality_beside_the_share_of_choices_that_are_noise(html):
    speed = section(html, "speed")
    for words in ("Requests/s", "Undecided choices", "Whole request", "another answer lies within two standard errors"):
        assert words in speed
    for words in ("Tokens/s", "Characters/s", "First token final", "Cut by length"):
        assert words not in speed
    assert ">2.00" in speed
    assert ">8.00" in speed
    assert "17 %" in speed


def test_no_sentence_speaks_of_tokens_per_second(html):
    verdict = section(html, "verdict")
    assert "8.00 requests/s" in verdict
    assert "tokens/s" not in verdict
    assert "Every diffusion run was slower than the autoregressive model." in html


def test_such_a_task_is_not_counted_in_other_ways(html):
    assert "gsm_mini" not in section(html, "counting")


def test_its_comparison_is_of_requests_and_of_the_same_answers(html):
    pairs = section(html, "pairs")
    assert "0.250x" in pairs
    assert "Monte Carlo noise" in pairs
    assert "beyond 10 %" not in pairs


def test_forwards_and_time_name_the_scoring(html):
    assert '<th scope="col" class="n">score</th>' in section(html, "forwards")
    assert '<th scope="col" class="n">score</th>' in section(html, "time")
    assert "scoring" in section(html, "time")
