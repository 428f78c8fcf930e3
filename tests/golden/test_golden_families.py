"""LLaDA-MoE, Dream and dInfer: what their programs did on a tiny model, token for token and step for step."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest
import torch
from conftest import decoder_of
from golden_cases import DREAM, Row, cases, rows
from safetensors.torch import load_file

from dllm_audit import Blocks, Generation, Request
from dllm_audit.decode.loop import DecodeLoop, Job
from dllm_audit.decode.state import RowInput
from dllm_audit.measure.clock import Clock, timer_for
from dllm_audit.plugins import load_plugins

MODELS = {"llada_moe": "tiny_llada_moe", **dict.fromkeys(DREAM, "tiny_dream"), "dinfer_decoders": "tiny_llada"}
CASES = {
    "llada_moe": 13,
    "dream_original": 22,
    "dream_fastdllm_nocache": 16,
    "dream_fastdllm_block": 30,
    "dinfer_decoders": 14,
}
ROWS = {family: list(rows(family)) for family in CASES}
#: Rows whose decoding no setting describes: a seed of torch's generator, or blocks that are counted from column 0.
APART = {row.id for family in CASES for row in ROWS[family] if row.seed is not None or row.tag.endswith("block_align")}


def ask(row: Row) -> Request:
    return Request(row.id, prompt_ids=row.prompt_ids, settings=row.settings)


def commit_sets(commits) -> list[list[tuple[int, int, float]]]:
    """(position, token, confidence) of each forward that committed any, positions ascending."""
    by_step = defaultdict(list)
    for commit in commits:
        by_step[commit.step].append((commit.position, commit.token, commit.confidence))
    return [sorted(by_step[step]) for step in sorted(by_step)]


def positions_and_tokens(sets) -> list[list[tuple[int, int]]]:
    return [[(at, token) for at, token, _ in step] for step in sets]


@pytest.fixture(scope="module")
def decoded(request) -> dict[str, Generation]:
    """Every recorded row that no seed decides, alone, through the backend that its function means."""
    results = {}
    for family, name in MODELS.items():
        decode = decoder_of(request.getfixturevalue(name))
        chosen = [row for row in ROWS[family] if row.id not in APART]
        for backend in sorted({row.backend for row in chosen}):
            results |= decode(backend, [ask(row) for row in chosen if row.backend == backend]).results
    return results


@pytest.mark.parametrize("name", ["tiny_dream", "tiny_llada_moe"])
def test_a_model_gives_the_logits_that_were_recorded(name, request):
    model = request.getfixturevalue(name)
    check = load_file(model.source.folder / "forward_check.safetensors")
    with torch.inference_mode():
        logits = model.module(check["input_ids"], is_causal=False, use_cache=False).logits
    assert (logits - check["logits"]).abs().max().item() < 1e-3


@pytest.mark.parametrize("family", CASES)
def test_no_recorded_case_is_missing(family):
    assert len(cases(family)) == CASES[family]


@pytest.mark.parametrize("family", CASES)
def test_every_recorded_row_is_reproduced_token_for_token(family, decoded):
    chosen = [row for row in ROWS[family] if row.id not in APART]
    assert [row.id for row in chosen if decoded[row.id].output_ids != row.window] == []


@pytest.mark.parametrize("family", CASES)
def test_every_row_commits_the_same_positions_together_in_the_same_order(family, decoded):
    wrong = []
    for row in ROWS[family]:
        if row.id not in APART:
            ours = positions_and_tokens(commit_sets(decoded[row.id].trace.commits))
            wrong += [] if ours == positions_and_tokens(row.commits) else [row.id]
    assert wrong == []


@pytest.mark.parametrize("family", CASES)
def test_every_commit_was_as_sure_as_recorded(family, decoded):
    """Where a program ranks by margin or entropy its value is recorded beside the probability, as `criterion`."""
    by_id = {case["id"]: case for case in cases(family)}
    furthest, compared = 0.0, 0
    for row in ROWS[family]:
        if row.id in APART:
            continue
        id, _, number = row.id.partition("#")
        pads = by_id[id]["settings"].get("attention_mask", [[]] * 9)[int(number)].count(0)
        recorded = {}
        for step in by_id[id]["steps"]:
            recorded |= {at - pads: p for at, _, p in step["commits"][int(number)]}
            recorded |= {at - pads: value for at, value in step.get("criterion", [[]] * 9)[int(number)]}
        by_entropy = row.settings.get("confidence") == "entropy"
        for commits in commit_sets(decoded[row.id].trace.commits):
            for at, _, confidence in commits:
                # The token that a block's refresh commits unconditionally has no criterion.
                if not (by_entropy and recorded[at] > 0):
                    compared, furthest = compared + 1, max(furthest, abs(confidence - recorded[at]))
    assert compared > 300
    assert furthest < 2e-4


@pytest.mark.parametrize("family", CASES)
def test_a_row_takes_the_forwards_of_the_original_less_the_ones_that_committed_nothing(family, decoded):
    """An original also forwards where its schedule rounds to no token, and dInfer beyond the end of a block."""
    spared = 0
    for case in cases(family):
        if case["batch_size"] > 1 or f"{case['id']}#0" in APART:
            continue
        empty = sum(not any(step["commits"]) for step in case["steps"])
        spared += empty
        assert decoded[f"{case['id']}#0"].nfe == case["forward_calls"] - empty, case["id"]
    assert spared == {
        "llada_moe": 0,
        "dream_original": 14,
        "dream_fastdllm_nocache": 0,
        "dream_fastdllm_block": 10,
    }.get(family, spared)


def test_masks_are_left_only_where_the_program_left_them(decoded):
    """Fast-dLLM's Dream leaves 15 of 16 masks in every block when a block has one step."""
    left = {id: result.residual_masks for id, result in decoded.items() if result.residual_masks}
    recorded = {row.id: row.residual_masks for family in CASES for row in ROWS[family] if row.residual_masks}
    assert left == recorded == {"dream-fdblock-020#0": 30, "dream-fdblock-041#0": 30}


@pytest.mark.parametrize(("family", "backend"), sorted({(f, r.backend) for f in CASES for r in ROWS[f]}))
def test_recorded_rows_of_unequal_length_share_a_batch_without_changing_a_token(family, backend, decoded, request):
    decode = decoder_of(request.getfixturevalue(MODELS[family]))
    chosen = [row for row in ROWS[family] if row.backend == backend and row.id not in APART]
    together = decode(backend, [ask(row) for row in chosen], concurrency=4).results
    assert [row.id for row in chosen if together[row.id].output_ids != row.window] == []
    assert [together[row.id].forwards for row in chosen] == [decoded[row.id].forwards for row in chosen]


def decode_apart(model, row: Row, backend: str, **changes):
    """One row through the loop itself, with the recipe of `backend` changed and the recorded seed."""
    settings = load_plugins().backends[backend].resolve(row.settings, model.traits).settings
    recipe = replace(load_plugins().backends[backend].make_recipe(settings, model.traits), **changes)
    given = RowInput(row.prompt_ids, row.settings["gen_length"])
    clock = Clock(timer_for(torch.device("cpu")))
    clock.start(row.id)
    with torch.inference_mode():
        loop = DecodeLoop(model, recipe, 1, given.length, clock)
        (finished,) = loop.run(iter([Job(row.id, given, row.seed or 0, traced=True)]))
    return finished


def test_random_reveals_follow_torchs_generator_as_the_program_does(tiny_dream):
    seeded = [row for row in ROWS["dream_original"] if row.seed is not None]
    assert len(seeded) == 3
    for row in seeded:
        finished = decode_apart(tiny_dream, row, "dream")
        assert finished.window_ids == row.window
        assert positions_and_tokens(commit_sets(finished.row.trace_commits)) == positions_and_tokens(row.commits)


def test_blocks_counted_from_column_0_are_those_of_dinfers_aligned_start(tiny_llada):
    aligned = [row for row in ROWS["dinfer_decoders"] if row.tag == "threshold_block_align"]
    assert len(aligned) == 2
    for row in aligned:
        finished = decode_apart(tiny_llada, row, "uncached", order=Blocks(row.settings["block_length"], "absolute"))
        assert finished.window_ids == row.window
        assert positions_and_tokens(commit_sets(finished.row.trace_commits)) == positions_and_tokens(row.commits)


def test_without_compat_a_shifted_head_sees_one_token_to_the_left_and_no_token_is_committed_unasked(tiny_dream):
    """The rules of the paper: the refresh commits what clears the bar, and the steps of a block need one more column."""
    decode = decoder_of(tiny_dream)
    chosen = [row for row in ROWS["dream_fastdllm_block"] if "threshold" in row.settings]
    different = 0
    for backend, width in (("prefixcache", 32 + 1), ("dualcache", 16 + 1)):
        mine = [row for row in chosen if row.backend == backend]
        requests = [Request(r.id, prompt_ids=r.prompt_ids, settings=r.settings | {"compat": None}) for r in mine]
        for row in mine:
            result = decode(backend, [q for q in requests if q.id == row.id]).results[row.id]
            assert result.residual_masks == 0
            different += result.output_ids != row.window
            if row.settings["block_length"] == 16 and row.settings["gen_length"] == 48:
                assert width in {forward.width for forward in result.trace.forwards}
    assert different > 0


def test_a_run_of_the_program_for_dream_is_known_as_such():
    """Its fidelity is read from the resolved settings."""
    backend = load_plugins().backends["dream"]
    resolution = backend.resolve({"compat": "fast-dllm", "threshold": 0.9})
    assert resolution.settings.compat == resolution.as_dict()["compat"] == "fast-dllm"
