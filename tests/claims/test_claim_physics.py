"""What published speeds need of the hardware."""

import pytest
from honest_claims import REPLICATED, SWEEP, claim_of

from dllm_audit.claims.hardware import DEVICES, MODELS, bytes_per_weight, find_device, find_model_size
from dllm_audit.claims.physics import Verdict, check_physics
from dllm_audit.claims.registry import load_claims

REGISTRY = load_claims()


def test_a_rate_is_compared_with_what_the_settings_allow():
    # 7B at bf16 on an H100: 4.18 ms a forward, so 2,000 tok/s from one request is 8.35 tokens each time.
    changes = {"model": "7B, 1.4e10 bytes", "hardware__count": 1, "precision": "bf16", "value": 2000, "concurrency": 1}
    claim = claim_of(REPLICATED, **changes, rate_of="one request")
    check = check_physics(claim)
    assert check.verdict is Verdict.IMPOSSIBLE
    assert check.status == "modelled"
    assert check.needed_tokens_per_forward == pytest.approx(8.353, abs=0.001)
    assert check.sentence == (
        "Impossible as stated: 2000 tok/s with 7B of the teaching model on H100 SXM needs at least 8.35 tokens per forward, "
        "but the stated tokens per step allows 4."
    )


def test_without_tokens_per_step_the_block_bounds_and_the_claim_needs_a_tau():
    changes = {"model": "7B, 1.4e10 bytes", "hardware__count": 1, "precision": "bf16", "value": 2000, "concurrency": 1}
    decode = {"decode__tokens_per_step": "not stated", "decode__steps": "not stated", "decode__schedule": "threshold"}
    check = check_physics(claim_of(REPLICATED, **changes, **decode, rate_of="one request"))
    assert check.verdict is Verdict.NEEDS
    assert check.sentence == (
        "Needs tau >= 8.35: 2000 tok/s with 7B of the teaching model on H100 SXM needs at least 8.35 tokens per forward, "
        "and a block of 32 allows 32."
    )


def test_what_one_device_cannot_do_several_may_when_nobody_counted_them():
    changes = {"model": "7B, 1.4e10 bytes", "precision": "bf16", "value": 2000, "concurrency": 1}
    claim = claim_of(REPLICATED, **changes, rate_of="one request", hardware__count="not stated")
    check = check_physics(claim)
    assert check.verdict is Verdict.NEEDS
    assert check.sentence.startswith("Needs at least 3 devices. Impossible on one: 2000 tok/s")
    assert check.assumptions[1:] == ("Unknown number of devices: one.",)


IMPOSSIBLE = {"model": "7B, 1.4e10 bytes", "hardware__count": 1, "value": 20_000, "concurrency": 1, "precision": "bf16"}


def test_a_rate_that_may_be_of_many_requests_is_not_called_impossible_for_one():
    # 7B in bf16: a forward over 32 positions takes 4.18 ms, of which multiplying takes 0.453 ms. Many together need only
    # the latter: 3.6 tokens each time for 8,000 tok/s, and 9.1 for 20,000, where 4 are allowed.
    changes = {**IMPOSSIBLE, "concurrency": "not stated", "rate_of": "not stated"}
    assert check_physics(claim_of(REPLICATED, **changes)).verdict is Verdict.IMPOSSIBLE
    check = check_physics(claim_of(REPLICATED, **{**changes, "value": 8000}))
    assert check.verdict is Verdict.NEEDS
    assert check.sentence.startswith("Needs several requests in flight together. Impossible for one: 8000 tok/s")


def test_weights_of_unknown_width_may_be_narrower_than_8_bits():
    # 8 bits: 2.09 ms a forward and 4.18 tokens each time for 2,000 tok/s; 4 bits: half of both. 4 are allowed.
    changes = {**IMPOSSIBLE, "precision": "not stated", "value": 2000}
    check = check_physics(claim_of(REPLICATED, **changes, rate_of="one request"))
    assert check.verdict is Verdict.NEEDS
    assert check.sentence.startswith("Needs weights of fewer than 8 bits. Impossible with 8: 2000 tok/s")


def test_positions_of_a_mixture_may_agree_on_their_experts():
    # 99 % of 7e9 weights in bf16 take 4.13 ms, so 1,000 tok/s need 4.13 tokens each time; the 1.4e9 of one token 0.84.
    changes = {**IMPOSSIBLE, "model": "LLaDA-MoE-7B-A1B", "value": 1000}
    check = check_physics(claim_of(REPLICATED, **changes, rate_of="one request"))
    assert check.verdict is Verdict.NEEDS
    assert check.sentence.startswith(
        "Needs positions that share their experts. Impossible where each chooses for itself:"
    )
    assert check.assumptions[-1].startswith("Experts: every position chooses for itself")


def test_the_time_of_one_token_is_not_the_time_of_an_answer():
    latency = {"kind": "latency", "unit": "ms", "value": 10, "output_tokens": 256, "hardware__count": 1}
    check = check_physics(claim_of(REPLICATED, model="Qwen2.5-7B", metric="time per output token", **latency))
    assert check.sentence == (
        "Nothing can be worked out: the source gives no rate, nor a time with a number of tokens."
    )


def test_an_unknown_size_gives_the_sizes_that_would_do():
    claim = claim_of(
        REPLICATED, model="Secret", system="Secret", hardware__count=1, value=1000, concurrency=1, rate_of="one request"
    )
    check = check_physics(claim)
    assert check.verdict is Verdict.UNKNOWN
    # One token per forward: 1,000 forwards a second read 3.352 GB each, one byte a weight.
    assert check.possible_parameters[1] == pytest.approx(3.352e9)
    assert "3.4B at 1, 13B at 4" in check.sentence


def test_unknown_concurrency_takes_what_favours_the_claim():
    known = check_physics(claim_of(REPLICATED, model="Qwen2.5-7B", rate_of="all requests", hardware__count=1))
    unknown = check_physics(
        claim_of(REPLICATED, model="Qwen2.5-7B", rate_of="all requests", hardware__count=1, concurrency="not stated")
    )
    assert unknown.needed_tokens_per_forward <= known.needed_tokens_per_forward
    assert unknown.assumptions[1:] == ("Unknown concurrency: as many requests as favour the claim.",)


def test_unknown_hardware_and_claims_that_are_not_about_speed():
    check = check_physics(claim_of(SWEEP, hardware="not stated"))
    assert (check.verdict, check.sentence) == ("unknown", "Nothing can be worked out: the hardware is not stated.")
    assert check_physics(REGISTRY.get("kim-llada-gsm8k-fixed-4-per-step")).verdict is Verdict.NOT_APPLICABLE


def test_the_teaching_claim_is_plausible_by_its_own_arithmetic():
    assert check_physics(REGISTRY.get("teach-latency-block-cached-4")).verdict is Verdict.PLAUSIBLE


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("NVIDIA A100-SXM4-40GB", "A100 40GB"),
        ("NVIDIA A100 80GB", "A100 80GB"),
        ("H100 SXM5, taken as 3.352 TB/s", "H100 SXM"),
        ("NVIDIA H20, tensor parallel", "H20"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA B200", "B200"),
    ],
)
def test_a_device_is_found_in_a_sources_wording(text, name):
    assert find_device(text).name == name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("LLaDA-8B-Instruct", "LLaDA-8B"),
        ("LLaDA2.0-flash-CAP", "LLaDA2-flash"),
        ("LLaDA2.1-mini", "LLaDA2-mini"),
        ("Fast-dLLM v2 7B", "Fast-dLLM v2 7B"),
        ("Qwen3-0.6B", "Qwen3-0.6B"),
    ],
)
def test_a_model_is_found_in_a_sources_wording(text, name):
    assert find_model_size(text).name == name


def test_an_unknown_device_or_model_is_not_guessed():
    assert find_device("a vendor's interface") is None
    assert find_model_size("Mercury Coder Mini", "Mercury") is None


def test_a_mixture_has_experts_of_the_size_that_its_totals_mean():
    # 7e9 in all and 1.4e9 active with 8 of 64: routed experts are (7 - 1.4)e9 / (1 - 1/8) = 6.4e9.
    dimensions = find_model_size("LLaDA-MoE-7B-A1B-Instruct").dimensions
    assert (dimensions.body, dimensions.experts) == (pytest.approx(0.6e9), pytest.approx(6.4e9))
    assert (dimensions.parameters, dimensions.active) == (pytest.approx(7e9), pytest.approx(1.4e9))


def test_precisions_in_words():
    assert [bytes_per_weight(p) for p in ("FP8 per block", "bf16", "NVFP4", "float32", "mixed")] == [1, 2, 0.5, 4, None]


def test_a_bound_takes_the_fastest_units_that_weights_of_that_width_could_use():
    a100, b200, ada = (find_device(name) for name in ("A100 80GB", "B200", "RTX 4090"))
    assert [a100.fastest(width) for width in (2, 1, 0.5)] == [312e12, 624e12, 624e12]  # INT8, and nothing narrower here
    assert [b200.fastest(width) for width in (2, 1, 0.5)] == [2.25e15, 4.5e15, 9e15]
    assert (ada.fastest(1), ada.peak(1)) == (660.6e12, 330.3e12)


@pytest.mark.parametrize(
    ("text", "caution"),
    [
        ("NVIDIA A100 80GB", ""),
        ("NVIDIA H100 80GB HBM3", ""),
        ("NVIDIA A100", "'NVIDIA A100' names no variant: taken as A100 80GB."),
        ("NVIDIA Blackwell", "'NVIDIA Blackwell' names no variant: taken as B200."),
        (
            "NVIDIA H20",
            "The figures of H20 are unverified: tables of resellers, 96 GB, which agree; no document of NVIDIA was found.",
        ),
    ],
)
def test_a_choice_and_unverified_figures_are_said(text, caution):
    assert find_device(text).caution(text) == caution


def test_a_verdict_on_unverified_figures_says_so():
    claim = claim_of(REPLICATED, model="Qwen2.5-7B", hardware={"device": "DGX Spark", "count": 1})
    assert (
        check_physics(claim).assumptions[0].startswith("The figures of GB10 of DGX Spark are unverified: 273 GB/s and")
    )


def test_every_device_and_model_names_its_source():
    assert all(item.source for item in (*DEVICES, *MODELS))
