"""What the authors' own programs did on a tiny model, token for token and step for step. See README.md in this folder."""

from __future__ import annotations

import dataclasses
from collections import defaultdict

import pytest
from golden_cases import FAMILIES, Decoded, Row, cases, rows
from safetensors.torch import load_file

from dllm_audit import Generation, Request

ROWS: dict[str, list[Row]] = {family: list(rows(family)) for family in FAMILIES}
BACKENDS = ("uncached", "prefixcache", "dualcache")
CASES = {"llada_original": 54, "llada_fastdllm_24cc59e": 57, "llada_fastdllm_a9b81e4": 106}


def ask(row: Row, **changes) -> Request:
    settings = {name: value for name, value in (row.settings | changes).items() if value is not None}
    return Request(row.id, prompt_ids=row.prompt_ids, settings=settings)


def decode_rows(decode, chosen: list[Row], **changes) -> dict[str, Generation]:
    """Every row alone, through the backend that its recorded function means."""
    results = {}
    for backend in BACKENDS:
        results |= decode(backend, [ask(row, **changes) for row in chosen if row.backend == backend]).results
    return results


def commit_sets(result: Generation) -> list[list[tuple[int, int, float]]]:
    """Committed (position, token, confidence) of each forward that committed any, positions ascending."""
    assert result.trace is not None
    by_step = defaultdict(list)
    for commit in result.trace.commits:
        by_step[commit.step].append((commit.position, commit.token, commit.confidence))
    return [sorted(by_step[step]) for step in sorted(by_step)]


@pytest.fixture(scope="module")
def runs(decode) -> dict[str, Decoded]:
    """Every recorded row, alone, by backend."""
    every = [row for family in FAMILIES for row in ROWS[family]]
    return {name: decode(name, [ask(row) for row in every if row.backend == name]) for name in BACKENDS}


@pytest.fixture(scope="module")
def decoded(runs) -> dict[str, Generation]:
    return {id: result for run in runs.values() for id, result in run.results.items()}


def test_the_model_gives_the_logits_that_were_recorded(tiny_llada):
    check = load_file(tiny_llada.source.folder / "forward_check.safetensors")
    logits = tiny_llada.module(check["input_ids"], is_causal=False, use_cache=False).logits
    assert logits.shape == check["logits"].shape
    assert (logits - check["logits"]).abs().max().item() < 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_no_recorded_case_is_missing(family):
    assert len(cases(family)) == CASES[family]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_recorded_row_is_reproduced_token_for_token(family, decoded):
    wrong = [row.id for row in ROWS[family] if decoded[row.id].output_ids != row.window]
    assert wrong == []


@pytest.mark.parametrize("family", FAMILIES)
def test_every_row_commits_the_same_positions_together_in_the_same_order(family, decoded):
    wrong = []
    for row in ROWS[family]:
        ours = [[(at, token) for at, token, _ in step] for step in commit_sets(decoded[row.id])]
        if ours != [[(at, token) for at, token, _ in step] for step in row.commits]:
            wrong.append(row.id)
    assert wrong == []


#: The recorded probability is that of the plain softmax; these programs rank by another number.
RANKED_OTHERWISE = ("cfg", "cfg_batch2", "batch2_left_pad_cfg", "logits_eos_inf", "confidence_eos_eot_inf")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_commit_was_as_sure_as_recorded(family, decoded):
    compared, furthest = 0, 0.0
    for row in ROWS[family]:
        if row.tag in RANKED_OTHERWISE:
            continue
        ours = [c for step in commit_sets(decoded[row.id]) for c in step]
        theirs = [c for step in row.commits for c in step]
        for (_, _, confidence), (_, _, probability) in zip(ours, theirs, strict=True):
            compared += 1
            furthest = max(furthest, abs(confidence - probability))
    assert compared > 900
    assert furthest < 2e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_takes_the_forwards_of_the_original_less_the_ones_that_could_not_commit(family, decoded):
    """24cc59e runs a cached forward after a block is finished; original LLaDA's empty steps are its schedule: we keep them."""
    wasted = {case["id"]: sum(not any(step["commits"]) for step in case["steps"]) for case in cases(family)}
    assert (
        sum(wasted.values()) == {"llada_original": 8, "llada_fastdllm_24cc59e": 6, "llada_fastdllm_a9b81e4": 0}[family]
    )
    for row in ROWS[family]:
        if row.batch == 1:
            ours = decoded[row.id].nfe - decoded[row.id].forwards.get("cfg", 0)
            spared = wasted[row.id.partition("#")[0]] if family == "llada_fastdllm_24cc59e" else 0
            assert ours == row.forward_calls - spared, row.id


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_counters_of_a_row_are_what_a_wrapper_around_the_model_counts(backend, runs):
    run = runs[backend]
    for id, result in run.results.items():
        outside = run.outside[id]
        guided = result.forwards.get("cfg", 0)
        assert (result.nfe - guided, result.query_positions) == (outside.calls, outside.positions), id


def test_the_log_of_the_engine_is_what_a_wrapper_around_the_model_counts(runs):
    for backend, run in runs.items():
        assert run.log is not None
        guided = [r for r in run.results.values() if r.forwards.get("cfg")]
        assert run.log.batch_forwards == run.total.calls
        # Guidance feeds a second half of the batch in the same call; the log counts its rows once.
        second_half = sum(r.query_positions // 2 for r in guided)
        positions = sum(shape.count * shape.rows * shape.width for shape in run.log.shapes)
        assert positions + second_half == run.total.positions, backend


def test_masks_are_left_only_where_the_program_left_them(decoded):
    by_case = defaultdict(int)
    recorded = {}
    for family in FAMILIES:
        for row in ROWS[family]:
            case = row.id.partition("#")[0]
            by_case[case] += decoded[row.id].residual_masks
            recorded[case] = row.residual_masks
            assert decoded[row.id].residual_masks == row.window.count(126), row.id
    inside_the_window = {case: n for case, n in recorded.items() if n}
    assert {case: n for case, n in by_case.items() if n}.keys() <= inside_the_window.keys()
    exhausted = [row for row in ROWS["llada_fastdllm_a9b81e4"] if row.tag.endswith("_steps_exhausted")]
    assert len(exhausted) == 3
    assert all(decoded[row.id].residual_masks == row.residual_masks > 0 for row in exhausted)


@pytest.fixture(scope="module")
def paper(decode) -> dict[str, Generation]:
    """The rows of both Fast-dLLM programs under the rules of their paper."""
    return decode_rows(decode, [row for family in FAMILIES[1:] for row in ROWS[family]], compat=None)


def test_no_mask_is_left_under_paper_rules(paper):
    assert {result.residual_masks for result in paper.values()} == {0}
    assert all(126 not in result.output_ids for result in paper.values())


def test_29_of_the_106_cases_of_fast_dllm_differ_under_paper_rules(paper):
    different = set()
    for row in ROWS["llada_fastdllm_a9b81e4"]:
        result = paper[row.id]
        ours = [[(at, token) for at, token, _ in step] for step in commit_sets(result)]
        theirs = [[(at, token) for at, token, _ in step] for step in row.commits]
        if result.output_ids != row.window or ours != theirs:
            different.add((row.id.partition("#")[0], row.tag))
    assert len(different) == 29
    assert {tag for _, tag in different} <= {
        "factor",
        "factor_and_threshold_factor_wins",
        "batch2_factor",
        "factor_steps_exhausted",
        "threshold_steps_exhausted",
        "prompt_contains_mask_threshold",
    }


@pytest.mark.parametrize("backend", BACKENDS)
def test_recorded_rows_of_unequal_length_share_a_batch_without_changing_a_token(backend, decode, decoded):
    chosen = [row for family in FAMILIES for row in ROWS[family] if row.backend == backend]
    together = decode(backend, [ask(row) for row in chosen], concurrency=5)
    assert [row.id for row in chosen if together.results[row.id].output_ids != row.window] == []
    costs = [(decoded[row.id].forwards, decoded[row.id].query_positions) for row in chosen]
    assert [(r.forwards, r.query_positions) for r in (together.results[row.id] for row in chosen)] == costs
    assert together.log is not None
    assert together.log.batch_forwards == together.total.calls < sum(sum(forwards.values()) for forwards, _ in costs)


def test_a_trace_accounts_for_every_forward_and_every_committed_token(decoded):
    for result in decoded.values():
        assert result.trace is not None
        assert len(result.trace.forwards) == result.nfe
        assert sum(forward.width for forward in result.trace.forwards) == result.query_positions
        in_window = [c for c in result.trace.commits if c.position >= result.prompt_tokens]
        assert len(in_window) == result.committed_tokens == len(result.output_ids) - result.residual_masks
        for commit in in_window:
            assert result.output_ids[commit.position - result.prompt_tokens] == commit.token


def test_a_confidence_in_float32_decides_as_one_in_float64_does(decode):
    """Recorded cases keep every decision 2e-4 away from its alternative."""
    chosen = [row for row in ROWS["llada_fastdllm_a9b81e4"] if row.backend == "dualcache"]
    single = [dataclasses.replace(row, settings=row.settings | {"confidence_dtype": "float32"}) for row in chosen]
    again = decode_rows(decode, single)
    assert [again[row.id].output_ids for row in chosen] == [row.window for row in chosen]
