"""Calls on which the original programs fail, hang or refuse: here each works, or is refused with a sentence."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from conftest import decoder_of
from golden_cases import FOLDER

from dllm_audit import Failure, Generation, Request
from dllm_audit.plugins import load_plugins

OBSERVED = {
    case["id"]: case["observed"]
    for case in map(json.loads, (FOLDER / "traces" / "expected_errors.jsonl").read_text().splitlines())
}
BACKENDS = {
    "generate": "uncached",
    "generate_with_prefix_cache": "prefixcache",
    "generate_with_dual_cache": "dualcache",
}
FAST_DLLM = [(program, function) for program in ("fd24", "fdu") for function in BACKENDS]
PROMPT = (76, 64, 99, 1, 4, 50, 15, 59, 7)


def one(decode, backend: str, **settings) -> Generation | Failure:
    return decode(backend, [Request("only", prompt_ids=PROMPT, settings=settings)]).results["only"]


@pytest.mark.parametrize("compat", [None, "fast-dllm"])
@pytest.mark.parametrize(("program", "function"), FAST_DLLM)
def test_one_step_per_block_commits_whole_blocks_where_24cc59e_raises_an_index_error(decode, program, function, compat):
    expected = "IndexError" if program == "fd24" and function != "generate" else "no exception"
    assert OBSERVED[f"{program}-{function}-onestep"] == expected
    result = one(decode, BACKENDS[function], gen_length=32, block_length=8, steps=4, compat=compat)
    assert (result.nfe, result.committed_tokens, result.residual_masks) == (4, 32, 0)


@pytest.mark.parametrize(("program", "function"), FAST_DLLM)
def test_a_batch_of_two_works_where_24cc59e_raises_a_runtime_error(decode, program, function):
    assert OBSERVED[f"{program}-{function}-b2"] == ("RuntimeError" if program == "fd24" else "no exception")
    settings = {"gen_length": 32, "block_length": 8, "steps": 16, "compat": "fast-dllm"}
    prompts = [PROMPT, tuple(range(1, 10))]
    requests = [Request(str(n), prompt_ids=prompt) for n, prompt in enumerate(prompts)]
    both = decode(BACKENDS[function], requests, settings, concurrency=2)
    alone = decode(BACKENDS[function], requests, settings)
    assert [both.results[id].output_ids for id in "01"] == [alone.results[id].output_ids for id in "01"]
    assert (alone.total.calls, both.total.calls) == (32, 16)


@pytest.mark.parametrize(("program", "function"), FAST_DLLM)
def test_steps_that_do_not_divide_are_refused_with_a_sentence_where_the_program_asserts(decode, program, function):
    assert OBSERVED[f"{program}-{function}-indiv"] == "AssertionError"
    result = one(decode, BACKENDS[function], gen_length=32, block_length=8, steps=10, compat="fast-dllm")
    assert result == Failure(
        "only",
        "SettingError",
        "steps=10 does not divide by the 4 blocks of this window. "
        "Use a multiple of 4, or say steps_per_block or tokens_per_step.",
    )


@pytest.mark.parametrize("compat", [None, "fast-dllm"])
@pytest.mark.parametrize(("program", "function"), FAST_DLLM)
def test_more_steps_than_tokens_commit_one_token_at_a_time(decode, program, function, compat):
    assert OBSERVED[f"{program}-{function}-steps>block"] == "no exception"
    result = one(decode, BACKENDS[function], gen_length=32, block_length=8, steps=64, compat=compat)
    assert (result.nfe, result.committed_tokens, result.residual_masks) == (32, 32, 0)


def test_more_steps_than_tokens_make_empty_forwards_in_compat_llada_as_in_the_original(decode):
    result = one(decode, "uncached", gen_length=32, block_length=8, steps=64, compat="llada")
    assert (result.nfe, result.committed_tokens, result.residual_masks) == (64, 32, 0)


def test_guidance_works_without_an_attention_mask_where_the_original_meets_an_unbound_variable(decode):
    assert OBSERVED["orig-cfg-nomask"] == "UnboundLocalError"
    plain = one(decode, "uncached", gen_length=8, block_length=8, compat="llada")
    guided = one(decode, "uncached", gen_length=8, block_length=8, compat="llada", cfg_scale=1.5)
    assert guided.forwards == {"denoise": 8, "cfg": 8}
    assert guided.output_ids != plain.output_ids


def test_a_last_block_may_be_short_where_the_original_asserts(decode):
    assert OBSERVED["orig-indiv"] == "AssertionError"
    result = one(decode, "uncached", gen_length=12, block_length=8)
    assert (result.nfe, result.committed_tokens) == (12, 12)
    assert [forward.block for forward in result.trace.forwards] == [0] * 8 + [1] * 4


@pytest.mark.parametrize("compat", ["llada", "fast-dllm"])
def test_a_short_last_block_is_refused_in_compat_because_the_programs_have_none(decode, compat):
    result = one(decode, "uncached", gen_length=12, block_length=8, compat=compat)
    assert isinstance(result, Failure)
    assert result.type == "SettingError"
    assert "gen_length=12" in result.message
    assert "block_length=8" in result.message


def test_steps_that_do_not_divide_are_refused_in_compat_llada(decode):
    assert OBSERVED["orig-steps"] == "AssertionError"
    result = one(decode, "uncached", gen_length=32, block_length=8, steps=30, compat="llada")
    assert result.message.startswith("steps=30 does not divide by the 4 blocks of this window.")


def test_end_of_text_is_suppressed_by_the_models_own_id_where_the_original_has_a_hard_coded_one(decode):
    assert OBSERVED["orig-logits_eos"] == "IndexError"
    settings = {"gen_length": 16, "block_length": 16, "eos": "suppress_logits"}
    for prompt in (PROMPT, (1,), (121, 121, 121)):
        request = Request("only", prompt_ids=prompt, settings=settings)
        assert 121 not in decode("uncached", [request]).results["only"].output_ids


@pytest.mark.parametrize("settings", [{"threshold": 0.5}, {"steps": 8}])
@pytest.mark.parametrize("backend", BACKENDS.values())
def test_a_model_whose_likeliest_token_is_the_mask_ends_where_fast_dllm_never_does_or_fails(
    tiny_llada, backend, settings
):
    assert OBSERVED["fdu-predict-mask"] == "does not terminate (stopped after 5s)"
    assert OBSERVED["fdu-predict-mask-quota"] == "IndexError"
    head = tiny_llada.module.lm_head
    eager = torch.nn.Linear(head.in_features, head.out_features)
    with torch.no_grad():
        eager.weight.copy_(head.weight)
        eager.bias.zero_()
        eager.bias[126] = 1e4
    results: list[Generation] = []
    tiny_llada.module.lm_head = eager.requires_grad_(False)
    try:
        session = (
            load_plugins()
            .backends[backend]
            .open(
                dataclasses.replace(tiny_llada),
                {"gen_length": 16, "block_length": 8, "compat": "fast-dllm", **settings},
            )
        )
        session.generate([Request("only", prompt_ids=PROMPT)], results.append)
    finally:
        tiny_llada.module.lm_head = head
    assert results[0].residual_masks == 0
    assert 126 not in results[0].output_ids


@pytest.mark.parametrize(
    ("id", "backend", "settings"),
    [
        ("dream-block-b2-prefix-thr", "prefixcache", {"threshold": 0.5}),
        ("dream-block-b2-dual-thr", "dualcache", {"threshold": 0.5}),
        ("dream-block-b2-entropy", "prefixcache", {"confidence": "entropy", "steps": 8}),
        ("dream-block-leftpad", "dualcache", {"threshold": 0.5}),
        ("dream-nocache-thr-b2", "dream", {"threshold": 0.5, "steps": 8}),
    ],
)
def test_unequal_rows_of_dream_share_a_batch_where_fast_dllm_hangs_crashes_or_refuses(
    tiny_dream, id, backend, settings
):
    assert OBSERVED[id] != "no exception" or "entropy" in id
    decode = decoder_of(tiny_dream)
    blocks = {} if backend == "dream" else {"block_length": 8}
    given = {"gen_length": 16, "compat": "fast-dllm", **blocks, **settings}
    requests = [Request(str(n), prompt_ids=PROMPT[n:]) for n in range(3)]
    both, alone = (decode(backend, requests, given, concurrency=rows).results for rows in (3, 1))
    assert [both[n].output_ids for n in "012"] == [alone[n].output_ids for n in "012"]
    assert {result.residual_masks for result in both.values()} == {0}


@pytest.mark.parametrize(
    ("id", "backend", "settings", "said"),
    [
        ("dream-nocache-thr-indiv", "dream", {"threshold": 0.5, "steps": 5}, "steps=5 does not divide"),
        ("dream-nocache-thr-indiv", "dream", {"threshold": 0.5, "factor": 1.0}, "has no factor"),
        ("dream-nocache-thr-indiv", "dream", {"threshold": 0.5, "tokens_per_step": 2}, "counts steps"),
        ("dream-nocache-thr-indiv", "dream", {"compat": "llada"}, "is a program for LLaDA"),
        ("dream-block-blocklen-indiv", "dualcache", {"threshold": 0.5, "block_length": 32}, "no multiple of"),
        ("dream-block-origin", "dualcache", {"confidence": "random", "steps": 16, "block_length": 8}, "by entropy"),
    ],
)
def test_what_fast_dllms_dream_asserts_or_silently_changes_is_said(tiny_dream, id, backend, settings, said):
    assert OBSERVED[id] == ("no exception" if id == "dream-block-origin" else "AssertionError")
    request = Request("only", prompt_ids=PROMPT, settings={"gen_length": 16, "compat": "fast-dllm", **settings})
    result = decoder_of(tiny_dream)(backend, [request]).results["only"]
    assert isinstance(result, Failure)
    assert said in result.message
