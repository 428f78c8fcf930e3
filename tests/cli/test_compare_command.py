"""`dllm-audit compare`: what it prints beside the verdict, and what it compares when nobody says."""

from __future__ import annotations

import json
import re
from math import prod

import pytest

from dllm_audit.cli.main import main
from dllm_audit.store.database import Store

#: transformers' generate takes half the seconds of the baseline.
WEAK = {
    "batch": 1, "prompts": 4, "gen_length": 64, "transformers": "5.24.0",
    "sides": [
        {"name": "ours", "provenance": "reference", "tokens": 100, "equal": 4, "seconds": [1.0] * 5},
        {"name": "generate", "provenance": "library", "tokens": 100, "equal": 4, "seconds": [0.5] * 5},
    ],
}  # fmt: skip


@pytest.fixture
def compare(capsys):
    """compare(database, arguments) -> (exit status, stdout, stderr)."""

    def call(database, *arguments):
        with pytest.raises(SystemExit) as end:
            main(["compare", "--db", str(database), *arguments])
        captured = capsys.readouterr()
        return end.value.code or 0, captured.out, captured.err

    return call


@pytest.fixture
def swept(tmp_path, build):
    """A command with a baseline at two concurrencies; the baseline is weak."""
    path = tmp_path / "swept.duckdb"
    with Store.open(path, write=True) as store:
        for level, seconds in ((1, (1.5, 3.0)), (4, (3.0, 1.5))):
            row = build("run_row", f"ar-{level}", concurrency=level, role="baseline")
            row["manifest"] = {**row["manifest"], "library": WEAK}
            shapes = (build("shape", "prefill", 10, 1, 6, 0.54), build("shape", "denoise", 1, 1, 24, 0.7))
            build("add_run", store, row, [build("generation")] * 6, [1] * 6, makespan=seconds[1], shapes=shapes)
            shapes = (build("shape", "refresh", 18, 1, 6, 0.36), build("shape", "denoise", 8, 1, 18, 0.72))
            row = build("diffusion_row", f"dual-{level}", concurrency=level)
            build(
                "add_run", store, row, [build("diffusion_generation")] * 6, [1] * 6, makespan=seconds[0], shapes=shapes
            )
    return path


def test_without_runs_every_concurrency_is_held_against_its_baseline_and_the_sweep_follows(compare, swept):
    status, out, _ = compare(swept)
    assert status == 0
    assert [line for line in out.splitlines() if line.startswith(("  against", "Sweep"))] == [
        "  against ar, baseline on tiny-ar  (ar-1)",
        "  against ar, concurrency 4, baseline on tiny-ar  (ar-4)",
        "Sweep over concurrency on gsm_mini: dualcache, threshold 0.9 against ar, tokens/s",
    ]
    assert "  The baseline overtakes at 2 in flight (interval unknown: 1 of at least 5 repeats).\n" in out
    assert "  The baseline is weak at 1 and 4 in flight, so a stronger one would overtake earlier.\n" in out


@pytest.mark.parametrize(
    ("repeats", "concurrency", "covered"),
    [
        (1, 1, "which requests were drawn from one run each, not how speed varies from run to run."),
        (5, 1, "which documents were drawn, and how speed varies from run to run."),
        (5, 4, "how speed varies from run to run on these documents, not which documents were drawn."),
    ],
)
def test_what_an_interval_of_speed_covers_is_said(compare, tmp_path, build, repeats, concurrency, covered):
    path = tmp_path / "repeated.duckdb"
    with Store.open(path, write=True) as store:
        for number in range(repeats):
            for kind, seconds in (("run_row", 3.0), ("diffusion_row", 1.5)):
                row = build(kind, f"{kind}-{number}", repeat=number, concurrency=concurrency)
                answer = "generation" if kind == "run_row" else "diffusion_generation"
                build("add_run", store, row, [build(answer)] * 6, [1] * 6, makespan=seconds)
    assert f"\n  Intervals of speed cover {covered}\n" in compare(path, "diffusion_row-0", "run_row-0")[1]


def test_the_same_facts_as_json(compare, swept):
    facts = json.loads(compare(swept, "--json")[1])
    assert [found["baseline"] for found in facts["comparisons"]] == ["ar-1", "ar-4"]
    assert facts["comparisons"][0]["baseline_strength"]["weak_baseline"] is True
    assert facts["sweeps"][0]["crossover"]["concurrency"] == pytest.approx(2)
    assert facts["factorials"] == []


def test_of_one_run_the_baseline_is_found(compare, swept):
    _, out, _ = compare(swept, "dual-4")
    assert out.count("  against ") == 1
    assert "(ar-4)" in out


def test_faster_than_a_weak_baseline_is_the_verdict(compare, swept):
    _, out, _ = compare(swept, "dual-1", "ar-1")
    assert out.rstrip().splitlines()[-1].startswith("Verdict: Faster than a weak baseline (2.00x, 2.00 to 2.00)")
    assert "  The baseline is weak: it runs at 0.50x the speed of transformers' generate" in out


def test_the_printed_factors_multiply_to_the_printed_ratio(compare, swept):
    _, out, _ = compare(swept, "dual-1", "ar-1")
    block = out[out.index("Where the speed comes from") : out.index("Treatment")]
    *factors, together = (float(value) for value in re.findall(r"([\d.]+)x$", block, re.MULTILINE))
    assert len(factors) == 3
    assert f"{prod(factors):.3f}" == f"{together:.3f}" == "2.000"
    assert "candidate outside of forwards 0.420 s 28.0%" in " ".join(block.split())


def test_the_exact_factors_multiply_to_the_measured_ratio(compare, swept):
    facts = json.loads(compare(swept, "dual-1", "ar-1", "--json")[1])
    found = facts["decomposition"]
    assert prod(factor["ratio"] for factor in found["factors"]) == pytest.approx(facts["speed"]["value"], rel=1e-9)
    assert found["reason"] == "the model's sizes or the device's speed were not recorded with the run"


def test_three_runs_are_too_many(compare, swept):
    status, _, err = compare(swept, "dual-1", "ar-1", "ar-4")
    assert (status, err) == (2, "Error: compare takes two runs, and 3 are given.\n")


def test_nothing_to_compare_is_a_sentence_with_what_to_do(compare, tmp_path, build):
    path = tmp_path / "alone.duckdb"
    with Store.open(path, write=True) as store:
        build("add_run", store, build("diffusion_row", "alone"), [build("diffusion_generation")], makespan=1.0)
    status, _, err = compare(path)
    assert status == 2
    assert "holds nothing to compare: no run has a baseline there." in err
    status, _, err = compare(path, "alone")
    assert status == 2
    assert "alone has no baseline in" in err
