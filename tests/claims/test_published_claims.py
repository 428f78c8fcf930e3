"""The claims that ship with the package, as a whole and each with the traps that its source is known for."""

import pytest

from dllm_audit.claims.questions import ask
from dllm_audit.claims.registry import load_claims
from dllm_audit.claims.traps import TRAPS, find_traps
from dllm_audit.resources import resource_folder

REGISTRY = load_claims()


def traps_of(claim_id):
    return {finding.id for finding in find_traps(REGISTRY.get(claim_id))}


def test_every_published_claim_is_valid():
    assert [str(problem) for problem in REGISTRY.problems] == []


def test_a_file_is_named_after_its_claim():
    assert {path.stem for path in resource_folder("claims").rglob("*.yaml")} == {c.id for c in REGISTRY.claims}


NOT_YET_MET = {
    "benchmark_subset",
    "prefix_shared_on_one_side",
}
"""Traps known from tools and threads, of which the register may have no claim."""


def test_every_trap_but_a_few_is_met_by_a_published_claim():
    met = set().union(*(traps_of(claim.id) for claim in REGISTRY.claims))
    assert {trap.id for trap in TRAPS} - met <= NOT_YET_MET


@pytest.mark.parametrize(
    ("claim_id", "expected"),
    [
        (
            "fastdllm-27.6x",
            {
                "weak_baseline",
                "uncached_baseline",
                "batch_1_only",
                "range_quoted_by_its_end",
                "contradicting_figures",
            }
            | {"self_reported_only", "undecidable_margin"},
        ),
        (
            "fastdllm-llada-gsm8k-256-8.1x",
            {"uncached_baseline", "batch_1_only", "self_reported_only", "undecidable_margin"},
        ),
        (
            "fastdllm-llada-humaneval-256-combined",
            {"uncached_baseline", "batch_1_only", "prompt_tokens_counted", "undecidable_margin"},
        ),
        (
            "fastdllm-accuracy-within-1-2-points",
            {"contradicting_figures", "self_reported_only", "undecidable_margin"},
        ),
        ("fastdllm-v2-2.54x", {"batch_1_only", "speed_and_quality_apart", "self_reported_only"}),
        ("kim-llada-gsm8k-fixed-4-per-step", set()),
        (
            "llada2-up-to-2.1x",
            {"other_engine", "concurrency_unknown", "speed_and_quality_apart", "range_quoted_by_its_end"}
            | {"contradicting_figures", "self_reported_only"},
        ),
        (
            "llada21-flash-humanevalplus",
            {"concurrency_unknown", "best_task_as_the_whole", "contradicting_figures", "self_reported_only"}
            | {"undecidable_margin"},
        ),
        (
            "dflash-6x-lossless",
            {"concurrency_unknown", "range_quoted_by_its_end", "best_task_as_the_whole", "self_reported_only"},
        ),
        ("seed-diffusion-2146", {"other_gpu", "other_engine", "concurrency_unknown", "self_reported_only"}),
        ("mercury-coder-mini-1109", {"other_gpu", "other_engine", "self_reported_only"}),
        (
            "gemini-diffusion-1479",
            {"concurrency_unknown", "overhead_excluded", "contradicting_figures", "self_reported_only"},
        ),
        (
            "diffusiongemma-vllm-h100-1008",
            {"weak_baseline", "batch_1_only", "prefill_excluded", "fixed_steps_without_quality"}
            | {"self_reported_only"},
        ),
        (
            "dinfer-10x-over-fastdllm",
            {"other_engine", "weak_baseline", "uncached_baseline", "batch_1_only", "several_devices"}
            | {"self_reported_only"},
        ),
        (
            "tai-llada-blockcached-estimate-p1024",
            {"weak_baseline", "assembled_estimate", "batch_1_only", "commit_pass_excluded"},
        ),
    ],
)
def test_a_known_claim_walks_into_the_traps_that_it_is_known_for(claim_id, expected):
    assert traps_of(claim_id) == expected


def test_the_266_seconds_are_set_against_the_27_6x():
    (finding,) = [f for f in find_traps(REGISTRY.get("fastdllm-27.6x")) if f.id == "contradicting_figures"]
    assert finding.sentence == "Claimed is 27.6x, but Figure 1(c) gives 12 against 266 s, which is 22.2x."


def test_mercury_is_unreadable_where_gemini_is_silent():
    mercury, gemini = (REGISTRY.get(i) for i in ("mercury-coder-mini-1109", "gemini-diffusion-1479"))
    assert ask(mercury)[0].status == "unreadable"
    assert ask(gemini)[0].status == "not stated"
