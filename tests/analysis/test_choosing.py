"""Choosing a threshold: the fastest of those whose quality is within the margin of the best."""

from __future__ import annotations

import pytest

from dllm_audit.analysis.asked import asked_alike, choice_notes, is_tuning, swept
from dllm_audit.analysis.choosing import choose_setting
from dllm_audit.analysis.summary import summarise
from dllm_audit.errors import UsageError


@pytest.fixture
def tried(empty_store, build):
    """tried((threshold, right of 10, seconds), ...) -> the summaries of such runs."""

    def make(*settings):
        summaries = []
        for threshold, right, seconds in settings:
            name = f"at-{threshold}"
            row = build("diffusion_row", name)
            row["settings"] = {**row["settings"], "threshold": threshold}
            scores = [1] * right + [0] * (10 - right)
            build("add_run", empty_store, row, [build("diffusion_generation")] * 10, scores, makespan=seconds)
            summaries.append(summarise(empty_store, name))
        return summaries

    return make


def test_the_fastest_within_the_margin_of_the_best_is_chosen(tried):
    found = tried((0.5, 5, 1.0), (0.7, 8, 2.0), (0.9, 9, 4.0))
    assert choose_setting(found, 0.1).chosen.threshold == 0.7
    assert choose_setting(found, 0.02).chosen.threshold == 0.9
    assert choose_setting(found, 0.5).chosen.threshold == 0.5


def test_of_equally_fast_ones_the_better_is_chosen(tried):
    assert choose_setting(tried((0.7, 8, 2.0), (0.9, 9, 2.0)), 0.2).chosen.threshold == 0.9


def test_what_was_tried_is_said_with_the_documents_and_the_rule(tried):
    sentence = choose_setting(tried((0.7, 8, 2.0), (0.9, 9, 4.0)), 0.1).sentence
    assert sentence == (
        "Threshold 0.7 was chosen among 0.7 (0.800, 20.0 tokens/s) and 0.9 (0.900, 10.0 tokens/s) on 10 documents that judge "
        "nothing: the fastest whose exact_match, strict-match is at most 10 points below the best."
    )


def test_nothing_is_chosen_without_a_metric(empty_store, build):
    build("add_run", empty_store, build("diffusion_row", "a"), [build("diffusion_generation")], makespan=1.0)
    with pytest.raises(UsageError, match="a has no metric of which more is better"):
        choose_setting([summarise(empty_store, "a")], 0.1)


def test_a_run_to_choose_on_is_no_result_and_no_match_for_one(build):
    result, tuning = build("diffusion_row", "a"), build("diffusion_row", "b")
    tuning["manifest"]["prompts"]["part"] = {"name": "tuning", "tuning_documents": 5}
    assert (is_tuning(result), is_tuning(tuning)) == (False, True)
    assert not asked_alike(result, tuning)
    assert choice_notes(tuning) == [
        "The run helped to choose a setting, on documents that judge nothing. It is no result."
    ]


def test_thresholds_on_the_same_documents_are_counted_and_others_not(build):
    runs = [build("diffusion_row", name) for name in "abc"]
    for run, threshold in zip(runs, (0.7, 0.9, 0.9), strict=True):
        run["settings"] = {**run["settings"], "threshold": threshold}
    assert swept(runs) == [("dualcache", 2)]
    assert swept(runs[1:]) == []
    runs[0]["manifest"]["prompts"]["documents"] = 3
    assert swept(runs) == []
