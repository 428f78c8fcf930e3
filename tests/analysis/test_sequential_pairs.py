"""Two runs that a sequential rule stopped: their comparison has intervals that hold whenever one stops."""

from __future__ import annotations

import pytest

from dllm_audit.analysis.pairing import compare
from dllm_audit.analysis.sequential import stopped_note, stopped_words

DOCUMENTS = 30


def facts(side: str, margin: float = 0.1) -> dict:
    return {
        "audit": "one", "side": side, "margin": margin, "metric": "exact_match", "filter": "strict-match",
        "documents": list(reversed(range(DOCUMENTS))), "documents_planned": 100, "stopped": "decided",
        "decision": "faster and not worse", "faster_than": 1.0,
    }  # fmt: skip


@pytest.fixture
def audited(empty_store, build):
    """audited(candidate's facts, baseline's) -> the comparison of two runs of which every answer is right."""

    def make(ours: dict | None, theirs: dict | None, margin: float | None = None):
        for name, kind, what, each, found in (
            ("base", "run_row", "generation", 0.5, theirs), ("cand", "diffusion_row", "diffusion_generation", 0.25, ours),
        ):  # fmt: skip
            row = build(kind, name, planned_requests=100)
            manifest = row["manifest"] | ({"sequential": found} if found else {})
            results = [build(what) for _ in range(DOCUMENTS)]
            build(
                "add_run", empty_store, {**row, "manifest": manifest}, results, [1] * DOCUMENTS,
                makespan=each * DOCUMENTS,
            )  # fmt: skip
        return compare(empty_store, "cand", "base", margin)

    return make


def test_the_two_sides_of_an_audit_are_compared_by_its_margin_with_always_valid_intervals(audited):
    found = audited(facts("candidate"), facts("baseline"))
    assert found.quality.margin == 0.1
    assert found.quality.p_value is None
    assert found.quality.difference.basis == "30 paired documents, whenever one stops"
    assert found.speed.basis == "30 pairs decoded in turns, whenever one stops"
    assert found.speed.value == pytest.approx(2.0)
    assert any("stopped by a sequential rule after 30 of 100 documents" in caveat for caveat in found.caveats)
    assert not found.unfinished


def test_the_interval_is_wider_than_that_of_a_fixed_number_of_documents(audited):
    watched = audited(facts("candidate"), facts("baseline")).quality.difference
    # Tango's for 30 of 30 right on both sides reaches from -0.114 to 0.114.
    assert watched.low < -0.12
    assert watched.high > 0.12


def test_a_margin_that_is_asked_for_takes_the_place_of_that_of_the_audit(audited):
    found = audited(facts("candidate"), facts("baseline"), margin=0.02)
    assert found.quality.margin == 0.02
    assert found.quality.verdict == "open"
    assert any("This comparison allows 2." in caveat for caveat in found.caveats)


@pytest.mark.parametrize("theirs", [None, {**facts("baseline"), "audit": "another"}])
def test_a_side_beside_a_run_of_no_or_another_audit_has_a_caveat(audited, theirs):
    found = audited(facts("candidate"), theirs)
    assert found.stopped is None
    assert found.quality.margin == 0.02
    assert any("was stopped when a comparison with another run was decided" in caveat for caveat in found.caveats)


def test_a_run_says_how_the_rule_ended_it(build):
    run = build("run_row", "a")
    assert (stopped_words(run), stopped_note(run)) == ("", "")
    run["manifest"]["sequential"] = facts("candidate")
    assert stopped_words(run) == "decided: faster and not worse"
    assert "after 30 of 100 documents in random order" in stopped_note(run)
    run["manifest"]["sequential"] = facts("control")
    assert stopped_words(run) == "control of an audit"


@pytest.mark.parametrize("damaged", [{}, [], {"margin": "x"}, {"margin": 0.1}])
def test_damaged_facts_of_an_audit_are_as_good_as_none(audited, damaged):
    assert audited(damaged, damaged).stopped is None
