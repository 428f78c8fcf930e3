"""A comparison under several prompt templates: the ranking holds, flips, or is open."""

from __future__ import annotations

import pytest

from dllm_audit.analysis.pairing import Comparisons
from dllm_audit.analysis.templates import template_studies

N = 12


@pytest.fixture
def study(empty_store, build):
    """study((name, seconds of the candidate, right of the candidate, right of the baseline), ...) -> the study of them."""

    def make(*templates):
        for name, seconds, ours, theirs in templates:
            for side, kind, each, right in (("base", "run_row", 0.5, theirs), ("cand", "diffusion_row", seconds, ours)):
                role = "baseline" if side == "base" else "candidate"
                row = build(kind, f"{side}-{name}", role=role)
                row["manifest"]["prompts"]["template"] = {"name": name, "doc_to_text": None}
                results = [build("generation", seconds={"denoise": each}) for _ in range(N)]
                scores = [1] * right + [0] * (N - right)
                build("add_run", empty_store, row, results, scores, makespan=each * N)
        (found,) = template_studies(empty_store, Comparisons(empty_store), empty_store.runs())
        return found

    return make


def test_a_ranking_holds_where_every_template_shows_the_same_side_ahead(study):
    found = study(("a", 0.25, 12, 12), ("b", 0.125, 12, 12))
    assert found.speed.verdict == "holds"
    assert found.speed.sentence == (
        "Speed: the ranking holds, at 2.00 to 4.00x: dualcache, threshold 0.9 is faster under all 2 templates."
    )


def test_a_ranking_flips_where_two_templates_show_opposite_sides_ahead(study):
    found = study(("a", 0.25, 12, 1), ("b", 1.0, 1, 12))
    assert (found.speed.verdict, found.quality.verdict) == ("flips", "flips")
    assert (
        "under “a” dualcache, threshold 0.9 is faster; under “b” dualcache, threshold 0.9 is slower"
        in found.speed.sentence
    )


def test_a_ranking_is_open_where_nothing_is_shown(study):
    found = study(("a", 0.5, 12, 12), ("b", 0.5, 11, 12))
    assert (found.speed.verdict, found.quality.verdict) == ("open", "open")
    assert "nothing is shown under any of the 2 templates" in found.quality.sentence


def test_together_is_clustered_by_document(study):
    """Both templates answer alike, so two answers to a document are worth one: 24 pairs count as 12."""
    found = study(("a", 0.25, 6, 12), ("b", 0.25, 6, 12))
    alone = found.rows[0].comparison.quality.difference
    assert found.together_quality.value == pytest.approx(-0.5)
    assert found.together_quality.high - found.together_quality.low >= alone.high - alone.low
    assert found.together_speed.value == pytest.approx(2.0)
