"""`dllm-audit run` holds its autoregressive runs against transformers' generate, once a configuration, after their time ran."""

from __future__ import annotations

import pytest

from dllm_audit.analysis.baseline import strength_of
from dllm_audit.analysis.summary import summarise
from dllm_audit.cli.main import main
from dllm_audit.evaluate import library
from dllm_audit.measure.library import LibraryComparison, Turns
from dllm_audit.store.database import Store

FOUND = LibraryComparison(
    1, 1, 8, "5.24.0", tuple(Turns(name, "reference", 8, 1, (1.0,) * 5) for name in ("ours", "generate"))
)


@pytest.fixture
def run(capsys, tmp_path):
    """run(arguments) -> the stored runs."""

    def call(*arguments: str):
        database = tmp_path / "results.duckdb"
        small = ("--task", "gsm_mini", "--limit", "2", "--gen-length", "8", "--trace", "0")
        with pytest.raises(SystemExit) as end:
            main(["run", "--db", str(database), *small, *arguments])
        assert end.value.code == 0, capsys.readouterr().err
        with Store.open(database) as store:
            return [(stored, strength_of(summarise(store, stored["run_id"]))) for stored in store.runs()]

    return call


@pytest.fixture
def asked(monkeypatch):
    """The batches and lengths that transformers was asked for."""
    found = []

    def compare(session, model, prompts, *, batch, gen_length, end_ids):
        found.append((len(prompts), batch, gen_length, tuple(end_ids)))
        return FOUND

    monkeypatch.setattr(library, "compare_with_library", compare)
    return found


def test_every_configuration_is_observed_once_and_diffusion_is_not(run, asked):
    runs = run(
        "--backend", "dualcache", "--baseline", "ar", "--concurrency", "1,2", "--repeats", "2", "--beside-generate"
    )
    assert asked == [(2, 1, 8, (0,)), (2, 2, 8, (0,))]
    for stored, strength in runs:
        assert ("library" in stored["manifest"]) == (stored["backend"] == "ar")
        if strength is not None:
            assert strength.observed == FOUND


def test_what_holds_for_several_baselines_is_said_once(run, asked, capsys):
    run("--backend", "dualcache", "--baseline", "ar", "--concurrency", "1,2", "--beside-generate")
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "transformers' generate" in line]
    assert line.startswith("ar, baseline; ar, concurrency 2, baseline: ")


def test_it_can_be_left_out(run, asked):
    ((stored, strength),) = run("--backend", "ar", "--no-beside-generate")
    assert (asked, "library" in stored["manifest"]) == ([], False)
    assert strength.generate.reason == "it was not held against transformers' generate"


def test_a_decoder_that_samples_has_no_answer_to_compare(run, asked):
    ((_, strength),) = run("--backend", "ar", "--temperature", "0.5", "--beside-generate")
    assert asked == []
    assert "it samples at temperature 0.5" in strength.sentence


def test_a_library_that_fails_costs_the_comparison_and_not_the_run(run, monkeypatch):
    def fail(*args, **kwargs):
        raise ValueError("no such cache\nsecond line")

    monkeypatch.setattr(library, "compare_with_library", fail)
    ((stored, strength),) = run("--backend", "ar", "--beside-generate")
    assert stored["status"] == "complete"
    assert strength.generate.reason == "it was not held against transformers' generate (no such cache)"


def test_for_real_it_gives_the_tokens_of_the_run(run):
    ((_, strength),) = run("--backend", "ar", "--beside-generate")
    assert strength.same_tokens is True
    assert strength.generate.has_interval
    assert [side.provenance for side in strength.observed.sides] == ["reference", "library", "library"]
