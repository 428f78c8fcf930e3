"""The report puts beside accuracy how the answers read, and what a cache or committing together changed in them."""

import datetime as dt
import re

from dllm_audit.claims.registry import Registry
from dllm_audit.report.build import render
from dllm_audit.report.page import gather


def page(store) -> str:
    return render(gather(store, Registry([], []), made_at=dt.datetime(2026, 1, 2)))


def text_of(html: str, start: str, end: str) -> str:
    """The text from `start` to `end`, white space collapsed."""
    return " ".join(re.sub(r"<[^>]+>", " ", html[html.index(start) :].partition(end)[0]).split())


def table(store) -> str:
    return text_of(page(store), "<caption><span>How the answers read", "</table>")


def test_runs_stand_beside_their_references_of_the_same_model(stored):
    text = table(stored)
    assert "Same tokens as one token per step, same model" in text
    assert "Same tokens as the same decoder without a cache" in text
    assert "dualcache, threshold 0.9 0.0 %" in text
    assert "Perplexity" not in text
    assert "Code does not parse" not in text


def test_the_same_decoder_without_a_cache_is_a_reference_of_its_own(empty_store, build):
    for run_id, backend, text in (("un", "uncached", "#### 5"), ("dual", "dualcache", "#### 6 6")):
        row = build("diffusion_row", run_id, backend=backend)
        build("add_run", empty_store, row, [build("diffusion_generation", text=text)] * 6, [1] * 6, makespan=1.0)
    html = page(empty_store)
    pairs = text_of(html, 'id="pairs"', "</section>")
    assert "Against the same decoder without a cache" in pairs
    assert "same tokens 100.0 % same answers 100 %" in pairs
    # "#### 6 6" has two pairs of words, of which one repeats.
    assert "dualcache, threshold 0.9 50.0 %" in text_of(html, "<caption><span>How the answers read", "</table>")


def test_programs_perplexity_and_answers_that_are_no_text_have_columns_where_there_are_any(empty_store, build):
    results = [build("generation", text="" if n == 0 else "    return b") for n in range(4)]
    programs = ["def f(a):\n    return a", "def f(a):\n    return b", "def f(a)", "def f(a):\n    return c"]
    build("add_run", empty_store, build("run_row", "r"), results, [1, 0, 0, 0], metric="pass@1", responses=programs)
    likelihood = {"reference_sha256": "aa", "dtype": "float32", "scored_tokens": 2, "loglikelihood": 0.0}
    hostile = "<script>alert(1)</script>"
    empty_store.add_text_likelihoods("r", [{**likelihood, "ordinal": n, "reference": hostile} for n in range(4)])
    html = page(empty_store)
    text = text_of(html, "<caption><span>How the answers read", "</table>")
    assert "Code does not parse Undefined names Perplexity under" in text
    assert "25.0 % 5 % to 70 % 1 nothing but padding or white space 25.0 % 5 % to 70 % 50.0 % 15 % to 85 % 1.00" in text
    assert "<script" not in html


def test_a_task_that_has_given_answers_scored_has_no_text(empty_store, build):
    build("add_scored_run", empty_store, build("run_row", "r"), [[(-1.0, 0.0), (-2.0, 0.0)]])
    assert "How the answers read" not in page(empty_store)
