"""How strong an autoregressive baseline is, and what that does to a verdict on a speed."""

import pytest

from dllm_audit.analysis.baseline import MATERIALLY_SLOWER, strength_of
from dllm_audit.analysis.pairing import compare
from dllm_audit.analysis.summary import summarise

#: 1,000 weights of two bytes take 2 s to read: 30 forwards of one position take 60 s at least.
ROOFLINE = {
    "dimensions": {"body": 1000},
    "bytes_per_weight": 2,
    "device": {"name": "slow", "bandwidth": 1000.0, "peak": 2000.0, "status": "measured", "cache_bytes": 100},
}


def side(name, seconds, equal=4):
    provenance = "reference" if name == "ours" else "library"
    return {"name": name, "provenance": provenance, "tokens": 100, "equal": equal, "seconds": list(seconds)}


def observed(generate=(1.0,) * 5, lookup=None, ours=(1.0,) * 5, equal=4):
    sides = [side("ours", ours), side("generate", generate, equal)]
    sides += [] if lookup is None else [side("prompt lookup", lookup)]
    return {"batch": 1, "prompts": 4, "gen_length": 64, "transformers": "5.24.0", "sides": sides}


@pytest.fixture
def add(empty_store, build):
    """add(library facts, roofline facts, makespan) -> Strength of an ar run "base" of 24 tokens in 30 forwards."""

    def call(library=None, roofline=None, makespan=3.0, **changed):
        row = build("run_row", "base", **changed)
        facts = {"library": library, "roofline": roofline}
        row["manifest"] = {**row["manifest"], **{name: value for name, value in facts.items() if value is not None}}
        build("add_run", empty_store, row, [build("generation")] * 6, [1] * 6, makespan=makespan)
        return strength_of(summarise(empty_store, "base"))

    return call


def test_a_baseline_that_generate_outruns_in_every_turn_is_weak(add):
    found = add(observed(generate=(0.5,) * 5))
    assert found.generate.value == pytest.approx(0.5)
    assert found.verdict == "weak"
    assert found.sentence == (
        "The baseline is weak: it runs at 0.50x the speed of transformers' generate (0.50 to 0.50, all "
        "below 0.95x: materially slower; the same tokens)."
    )
    assert found.sample == "4 prompts, up to 64 new tokens, 5 turns each, transformers 5.24.0"
    assert found.as_dict()["weak_baseline"] is True


@pytest.mark.parametrize(
    ("settings", "committed", "weak"),
    [
        ({"stop_at_eos": False}, 64, True),
        ({"stop_at_eos": False}, 5, False),
        ({"stop_at_eos": True}, 64, False),
        ({}, 64, False),
    ],
)
def test_a_baseline_that_decodes_on_after_its_answers_is_weak(empty_store, build, settings, committed, weak):
    """Without stop_at_eos an autoregressive decoder pays one forward for each token of padding, a diffusion decoder hardly any."""
    row = build("run_row", "base", settings=settings)
    build("add_run", empty_store, row, [build("generation", committed=committed)] * 6, [1] * 6, makespan=3.0)
    found = strength_of(summarise(empty_store, "base"))
    assert (found.verdict == "weak") is weak
    if weak:
        assert found.sentence == (
            "The baseline is weak: 92% of its tokens come after the end of its answers, where stop_at_eos would have let it stop."
        )


def test_a_baseline_that_generate_outruns_by_two_per_cent_is_not_weak(add):
    found = add(observed(generate=(0.98,) * 5))
    assert found.generate.high < 1
    assert found.verdict == "not weak"
    assert found.as_dict()["weak_baseline"] is False
    assert "(0.98 to 0.98, not below 0.95x; the same tokens)" in found.sentence


def test_a_baseline_that_generate_outruns_by_more_than_a_twentieth_is_weak(add):
    found = add(observed(generate=(0.94,) * 5))
    assert MATERIALLY_SLOWER == 0.95
    assert found.verdict == "weak"


def test_turns_on_both_sides_of_materially_slower_leave_it_undecided(add):
    found = add(observed(generate=(0.8, 1.3, 0.7, 1.2, 0.9)))
    assert found.generate.low < MATERIALLY_SLOWER < found.generate.high
    assert found.verdict == "undecided"
    assert found.as_dict()["weak_baseline"] is None
    assert found.sentence.startswith("Whether the baseline is weak is undecided: it runs at 0.98x")
    assert ", on both sides of 0.95x; the same tokens)" in found.sentence


def test_too_few_turns_for_an_interval_leave_it_undecided(add):
    assert add(observed(generate=(0.9,) * 2, ours=(1.0,) * 2)).verdict == "undecided"


def test_other_tokens_are_said(add):
    assert "; not always the same tokens)" in add(observed(equal=3)).sentence


def test_below_half_of_what_the_device_allows_a_baseline_is_weak(add):
    found = add(roofline=ROOFLINE, makespan=121.0)
    assert found.share.value == pytest.approx(60 / 121)
    assert found.sentence == "The baseline is weak: it reaches 50% of what the device allows (bound over wall time)."


def test_from_half_of_it_on_it_is_not(add):
    found = add(roofline=ROOFLINE, makespan=120.0)
    assert found.verdict == "not weak"
    assert found.sentence == (
        "The baseline is not shown to be weak: it was not held against transformers' generate; "
        "it reaches 50% of what the device allows (bound over wall time)."
    )


def test_weights_that_live_in_the_cache_make_the_share_not_applicable(add):
    in_cache = {**ROOFLINE, "device": {**ROOFLINE["device"], "cache_bytes": 2**21}}
    found = add(observed(), in_cache, makespan=1e6)
    assert found.verdict == "not weak"
    assert "its share of what the device allows is not applicable: the weights" in found.sentence


def test_without_any_measurement_the_strength_is_unknown_and_says_why(add):
    found = add({"reason": "it samples at temperature 0.5"})
    assert found.verdict == "unknown"
    assert found.as_dict()["weak_baseline"] is None
    assert found.sentence == (
        "How strong the baseline is is not known: it was not held against transformers' generate (it samples at "
        "temperature 0.5); its share of what the device allows is unknown: the model's sizes or the device's speed were "
        "not recorded with the run."
    )


def test_a_diffusion_baseline_has_no_such_strength(add):
    assert add(observed(), kind="diffusion") is None


# -- in a comparison --


@pytest.fixture
def against(add, empty_store, build):
    """against(library facts) -> comparison of a run twice as fast, of equal quality, with that baseline."""

    def call(library, candidate_manifest=None, baseline_model=None):
        base = build("run_row", "base")
        model = {**base["manifest"]["model"], **(baseline_model or {})}
        add(library, manifest={**base["manifest"], "model": model})
        row = build("diffusion_row", "cand")
        row["manifest"] = {**row["manifest"], "model": {**row["manifest"]["model"], **(candidate_manifest or {})}}
        build("add_run", empty_store, row, [build("diffusion_generation")] * 6, [1] * 6, makespan=1.5)
        return compare(empty_store, "cand", "base", margin=0.5)

    return call


def test_faster_than_a_weak_baseline_is_not_faster(against):
    found = against(observed(generate=(0.5,) * 5))
    assert found.speed_verdict == "faster than a weak baseline"
    assert found.faster_and_not_worse is False
    assert found.verdict == ("Faster than a weak baseline (2.00x, 2.00 to 2.00), which is not faster, and not worse.")


def test_faster_than_a_strong_baseline_is_faster(against):
    found = against(observed(lookup=(2.0,) * 5))
    assert found.speed_verdict == "faster"
    assert found.faster_and_not_worse is True
    assert found.caveats == ()


def test_prompt_lookup_that_is_faster_than_the_baseline_is_a_caveat_with_what_it_leaves(against):
    assert against(observed(lookup=(0.4,) * 5)).caveats == (
        "transformers' prompt-lookup decoding, which needs nothing but the baseline's model, runs at 2.50x the speed of "
        "the baseline: against that the candidate is at 0.80x.",
    )


def test_another_tokenizer_is_a_caveat_with_the_ratio_in_characters(against):
    found = against(
        None,
        {"tokenizer_sha256": {"tokenizer.json": "a", "tokenizer_config.json": "c"}},
        {"tokenizer_sha256": {"tokenizer.json": "b", "tokenizer_config.json": "c"}},
    )
    assert found.caveats == (
        "The two models have different tokenizers, so a token is not the same amount of text on both sides: in characters "
        "per second the candidate is at 2.00x.",
    )


def test_the_same_tokenizer_in_other_dress_is_none(against):
    ours, theirs = ({"tokenizer_sha256": {"tokenizer.json": "a", "chat_template.jinja": x}} for x in "cd")
    assert against(None, ours, theirs).caveats == ()
