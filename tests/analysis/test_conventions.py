import pytest

from dllm_audit.analysis.summary import summarise


def rates(store, run_id):
    return {c.id: (c.rate.value, c.inflation) for c in summarise(store, run_id).conventions}


def test_the_same_run_under_six_conventions(stored):
    # A 24, C 48, P 60, 1.5 s; of each 0.25 s: 0.02 s text, 0.12 s denoise, 0.10 s until the first token.
    assert rates(stored, "dual-1") == {
        "answered": (pytest.approx(16.0), pytest.approx(1.0)),
        "committed": (pytest.approx(32.0), pytest.approx(2.0)),
        "prompt-and-window": (pytest.approx(72.0), pytest.approx(4.5)),
        "decode-only": (pytest.approx(16 / 0.92), pytest.approx(1 / 0.92)),
        "steps-only": (pytest.approx(16 / 0.48), pytest.approx(1 / 0.48)),
        "after-first-chunk": (pytest.approx(16 / 0.6), pytest.approx(1 / 0.6)),
    }


def test_a_decode_only_clock_leaves_out_the_prefill_of_an_autoregressive_run(stored):
    # 0.11 s of 0.5 s are tokenising, prefill and detokenising.
    assert rates(stored, "ar-1")["decode-only"][1] == pytest.approx(0.5 / 0.39)


def test_what_was_counted_is_measured_and_what_a_clock_would_have_shown_is_derived(stored):
    status = {c.id: c.rate.status for c in summarise(stored, "dual-1").conventions}
    assert status["committed"] == "measured"
    assert status["steps-only"] == "derived"


def test_every_convention_says_what_it_hides(stored):
    assert all(c.hides.endswith(".") for c in summarise(stored, "dual-1").conventions)


def test_a_clock_that_would_not_run_gives_no_rate(empty_store, build):
    result = build("generation", seconds={"prefill": 0.5}, forwards={"prefill": 1})
    build("add_run", empty_store, build("run_row", "r"), [result], makespan=0.5)
    found = rates(empty_store, "r")
    assert found["steps-only"] == (None, None)
    assert found["decode-only"] == (None, None)
