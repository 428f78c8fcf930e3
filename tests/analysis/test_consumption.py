"""Memory and energy of stored runs: sums and shares that a person can follow."""

import json

import pytest

from dllm_audit.analysis.summary import summarise


def usage(sitting=1, joules=480.0, peak=5_000, name="peak_device_memory_bytes", **energy):
    counted = {"joules": joules, "seconds": 10.0, "counter": "a counter", "idle_watts": 30.0}
    return {"sitting": sitting, name: peak, "peak_memory_of": "what it is of", "energy": counted | energy}


@pytest.fixture
def found(empty_store, build):
    """The consumption of a run of six answers of four tokens, five of them correct, with this usage."""

    def make(used, correct=(1, 1, 1, 1, 1, 0), results=None):
        row = build("run_row", "r")
        manifest = row["manifest"] if used is None else row["manifest"] | {"usage": used}
        build("add_run", empty_store, {**row, "manifest": manifest}, results or [build("generation")] * 6, correct)
        return summarise(empty_store, "r").consumption

    return make


def test_energy_is_divided_by_answered_tokens_and_by_correct_answers(found):
    used = found([usage()])
    assert (used.energy.value, used.counter) == (480.0, "a counter")
    assert used.per_token.value == pytest.approx(480 / 24)
    assert used.per_correct.value == pytest.approx(480 / 5)
    assert used.idle_power.value == 30.0
    assert (used.per_token.status, used.per_token.unit) == ("derived", "J/token")


def test_of_several_sittings_energy_adds_up_and_the_highest_peak_counts(found):
    used = found([usage(1, 100.0, 7_000), usage(2, 50.0, 5_000, idle_watts=50.0)])
    assert (used.energy.value, used.peak_memory.value, used.idle_power.value) == (150.0, 7_000, 40.0)
    assert used.memory_of == "what it is of"


def test_a_sitting_without_energy_leaves_the_whole_unknown(found):
    used = found([usage(1), usage(2, None, reason="the window of 1.0 s is shorter than 5 s")])
    assert used.energy.value is None
    assert used.per_token.reason == "the window of 1.0 s is shorter than 5 s"
    assert used.is_recorded  # its memory is


def test_a_sitting_that_was_killed_stored_no_energy(empty_store, build, found):
    found([usage(1)])
    empty_store._connection.execute("UPDATE requests SET sitting = 2 WHERE ordinal = 5")
    assert summarise(empty_store, "r").consumption.energy.reason == "a sitting was killed before its energy was stored"


def test_without_a_right_or_wrong_no_answer_is_correct(found):
    assert found([usage()], correct=(0.5,) * 6).per_correct.reason == "no metric is right or wrong per document"


def test_no_correct_answer_has_no_price(found):
    assert found([usage()], correct=(0,) * 6).per_correct.reason == "no answer is correct"


@pytest.mark.parametrize("used", [None, "nonsense", [], [1], [{"energy": 3}]])
def test_old_and_damaged_files_do_not_know(found, used):
    known = found(used)
    assert not known.is_recorded
    assert known.energy.reason == known.peak_memory.reason == "not recorded when this was run"


def test_memory_that_the_system_does_not_tell_says_so(found):
    used = found([{"sitting": 1, "peak_memory_of": "unknown: this system does not tell", "energy": {"joules": None}}])
    assert used.peak_memory.reason == "this system does not tell"


def test_a_peak_that_cannot_be_true_is_none(found):
    assert found([usage(peak=-1)]).peak_memory.value is None


def test_it_is_shown_and_in_the_report(found, empty_store):
    import datetime as dt

    from click.testing import CliRunner

    from dllm_audit.claims.registry import Registry
    from dllm_audit.cli.main import cli
    from dllm_audit.report.build import render
    from dllm_audit.report.page import gather

    found([usage(peak=1_500_000)])
    html = render(gather(empty_store, Registry([], []), made_at=dt.datetime(2026, 1, 2)))
    assert 'aria-label="Memory and energy, gsm_mini"' in html
    assert "1.50 MB" in html
    assert "480 J" in html
    empty_store.close()
    database = ["--db", str(empty_store.path)]
    text = CliRunner().invoke(cli, ["show", "r", *database]).stdout
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert {"memory at its peak 1.5 MB what it is of", "energy 480.0 J a counter"} <= set(lines)
    assert "energy per answered token 20.000 J derived" in lines
    facts = json.loads(CliRunner().invoke(cli, ["show", "r", "--json", *database]).stdout)
    assert facts["consumption"]["per_correct"]["value"] == pytest.approx(96.0)
    assert facts["consumption"]["memory_of"] == "what it is of"
