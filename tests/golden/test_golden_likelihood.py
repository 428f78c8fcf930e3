"""Log-likelihoods and greedy checks of the original LLaDA program, and what it estimates: see README.md in this folder."""

from __future__ import annotations

import pytest
from golden_cases import cases

from dllm_audit.decode.likelihood import LikelihoodSettings, counts_from, score_answer, suffix_greedy

CASES = cases("llada_loglikelihood")
GREEDY = cases("llada_suffix_greedy")


def settings_of(case, **changes) -> LikelihoodSettings:
    recorded = case["settings"]
    return LikelihoodSettings(cfg_scale=recorded["cfg_scale"], batch_size=recorded["batch_size"], **changes)


def score(model, case, seed=0, **changes):
    return score_answer(model, case["prompt_ids"], case["answer_ids"], settings_of(case, **changes), seed)


def test_no_recorded_case_is_missing():
    assert (len(CASES), len(GREEDY)) == (10, 11)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_exact_enumeration_gives_the_unbiased_expectation_and_in_compat_that_of_the_program(case, tiny_llada):
    unbiased = score(tiny_llada, case, exact=True)
    program = score(tiny_llada, case, exact=True, compat="llada")
    assert unbiased.loglikelihood == pytest.approx(case["exact_expectation_uniform_l"], abs=1e-4)
    assert program.loglikelihood == pytest.approx(case["exact_expectation_reference_law"], abs=1e-4)
    assert (unbiased.standard_error, unbiased.exact) == (0, True)
    assert unbiased.samples == 2 ** len(case["answer_ids"]) - 1


def test_the_programs_mask_counts_follow_from_its_random_start():
    for case in CASES:
        for first, counts in case["reference_mask_counts_by_k"].items():
            ours = counts_from(int(first), len(case["answer_ids"]), case["settings"]["batch_size"])
            assert ours.tolist() == counts


def test_the_programs_bias_is_larger_than_its_error_where_the_length_does_not_divide():
    """Seven tokens in batches of four: 60 calls of the program agree on a value that is a whole nat off."""
    (case,) = (case for case in CASES if case["id"] == "llada-ll-010")
    bias = case["exact_expectation_reference_law"] - case["exact_expectation_uniform_l"]
    assert bias == pytest.approx(-1.017, abs=0.001)
    assert abs(case["mean"] - case["exact_expectation_reference_law"]) < 2 * case["standard_error"]
    assert abs(case["mean"] - case["exact_expectation_uniform_l"]) > 6 * case["standard_error"]


@pytest.mark.parametrize(
    ("id", "compat"), [("llada-ll-012", None), ("llada-ll-012", "llada"), ("llada-ll-008", "llada")]
)
def test_a_sampled_value_lies_within_a_few_of_its_standard_errors_of_the_expectation(id, compat, tiny_llada):
    (case,) = (case for case in CASES if case["id"] == id)
    expected = case["exact_expectation_reference_law" if compat else "exact_expectation_uniform_l"]
    result = score(tiny_llada, case, seed=11, samples=512, compat=compat)
    assert (result.exact, result.samples) == (False, 512)
    assert abs(result.loglikelihood - expected) < 4 * result.standard_error


@pytest.mark.parametrize("case", GREEDY, ids=lambda case: case["id"])
def test_greedy_decoding_fills_in_the_recorded_order_until_a_token_differs(case, tiny_llada):
    fill = suffix_greedy(tiny_llada, case["prompt_ids"], case["target_ids"])
    start = len(case["prompt_ids"])
    recorded = case["fill_order"][: len(fill.order)]
    assert fill.matches == case["is_greedy"]
    assert [(at + start, token) for at, token, _ in fill.order] == [(at, token) for at, token, _ in recorded]
    assert [p for _, _, p in fill.order] == pytest.approx([p for _, _, p in recorded], abs=2e-4)
    assert len(fill.order) == len(case["target_ids"]) or not fill.matches
