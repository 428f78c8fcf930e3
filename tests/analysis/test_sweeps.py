"""Sweeps over concurrency among comparisons, on speeds that a person can follow."""

import pytest

from dllm_audit.analysis.pairing import Comparisons
from dllm_audit.analysis.references import baseline_of, newest_pairs
from dllm_audit.analysis.sweeps import sweeps_of

#: 1,000 weights of two bytes take 2 s to read, and a position 1 s to multiply: from two positions on multiplying bounds.
ROOFLINE = {
    "dimensions": {"body": 1000},
    "bytes_per_weight": 2,
    "device": {"name": "slow", "bandwidth": 1000.0, "peak": 2000.0, "status": "measured", "cache_bytes": 100},
}


@pytest.fixture
def sweep(empty_store, build):
    """sweep({concurrency: (seconds of dualcache, seconds of ar)}, repeats, roofline facts, how far books are off) -> its sweeps.

    Every run answers 24 tokens. One row of dualcache takes 6 forwards of 4 positions, one of ar 24 of one.
    """

    def add(name, run_id, seconds, concurrency, repeat, facts, shapes, role):
        row = build(name, run_id, concurrency=concurrency, repeat=repeat, role=role)
        row["manifest"] = {**row["manifest"], **facts}
        kind = "diffusion_generation" if name == "diffusion_row" else "generation"
        build("add_run", empty_store, row, [build(kind)] * 6, [1] * 6, makespan=seconds, shapes=shapes)

    def call(seconds, repeats=1, roofline=None, off=0.0):
        facts = {"books": {"discrepancy": off}, **({"roofline": roofline} if roofline else {})}
        wide, narrow = build("shape", "denoise", 4, 1, 6, 1.0), build("shape", "denoise", 1, 1, 24, 1.0)
        for repeat in range(repeats):
            for level, (ours, theirs) in seconds.items():
                add("run_row", f"ar-{level}-{repeat}", theirs, level, repeat, facts, [narrow], "baseline")
                add("diffusion_row", f"dual-{level}-{repeat}", ours, level, repeat, facts, [wide], "candidate")
        comparisons = Comparisons(empty_store)
        pairs = newest_pairs(empty_store.runs())
        return sweeps_of([comparisons.compare(a["run_id"], b["run_id"]) for a, b in pairs], comparisons)

    return call


def test_the_baseline_overtakes_halfway_on_the_logarithm_between_twice_and_half_the_speed(sweep):
    (found,) = sweep({1: (1.0, 2.0), 4: (2.0, 1.0)}, repeats=5)
    assert (found.candidate, found.baseline) == ("dualcache, threshold 0.9", "ar")
    assert [(p.concurrency, p.speed.value) for p in found.points] == [
        (1, pytest.approx(2.0)),
        (4, pytest.approx(0.5)),
    ]
    assert found.crossover.concurrency == pytest.approx(2.0)
    assert found.sentence == "The baseline overtakes at 2 in flight (undecided from 2 to 2)."
    assert found.notes[0] == (
        "The interval of the crossover is over repeats of the same documents: others may move it further."
    )


def test_none_up_to_the_largest_concurrency_is_a_result_and_few_repeats_leave_the_interval_unknown(sweep):
    (found,) = sweep({1: (1.0, 2.0), 4: (0.5, 1.0)}, repeats=2)
    assert found.sentence == (
        "None up to 4: the candidate is faster at every measured concurrency (interval unknown: 2 of at least 5 repeats)."
    )
    assert found.as_dict()["crossover"]["verdict"] == "none"


def test_the_roofline_predicts_from_the_forwards_that_ran_at_the_lowest_concurrency(sweep):
    (found,) = sweep({1: (1.0, 2.0), 2: (1.0, 2.0)}, roofline=ROOFLINE)
    # At the bound 6 forwards of 4 positions take 24 s, 24 of one 48 s. With two rows: 6 x 8 s against 24 x 2 s, the same.
    assert (found.prediction.crossing.faster_from, found.prediction.crossing.crossover) == (1, 2)
    assert found.prediction.sentence == (
        "The roofline has the baseline as fast again from 2 in flight on (modelled from the forwards that ran at 1 in flight)."
    )


def test_where_no_bound_means_anything_nothing_is_predicted(sweep):
    (found,) = sweep({1: (1.0, 2.0), 2: (1.0, 2.0)})
    assert found.prediction.crossing is None
    assert found.prediction.sentence == (
        "The roofline predicts nothing: of tiny-mdm, the model's sizes or the device's speed were not recorded with the run."
    )
    assert found.as_dict()["roofline"] is None


def test_books_that_are_a_little_off_are_said_since_the_crossover_makes_no_allowance_for_them(sweep):
    (found,) = sweep({1: (1.0, 2.0), 2: (1.0, 2.0)}, off=0.1)
    assert found.notes[0] == (
        "At 1 and 2 in flight the books do not close within 5 %, for which the interval of where they cross makes no allowance."
    )


def test_books_that_are_far_off_leave_no_crossover_to_rely_on(sweep):
    (found,) = sweep({1: (1.0, 2.0), 4: (1.0, 2.0)}, off=0.5)
    assert found.notes[0] == "At 1 and 4 in flight the times are not reliable, and so neither is where they cross."


def test_one_concurrency_is_no_sweep(sweep):
    assert sweep({4: (1.0, 2.0)}) == ()


def test_an_engine_of_our_own_does_not_speak_for_a_served_one(sweep):
    (found,) = sweep({1: (1.0, 2.0), 2: (1.0, 2.0)})
    assert found.notes[-1].startswith("Both sides ran in the reference engine")


# -- which runs are compared when nobody says --


def test_every_concurrency_of_the_newest_command_is_held_against_the_baseline_of_its_own(sweep, empty_store):
    sweep({1: (1.0, 2.0), 4: (2.0, 1.0)}, repeats=2)
    assert [(a["run_id"], b["run_id"]) for a, b in newest_pairs(empty_store.runs())] == [
        ("dual-1-0", "ar-1-0"),
        ("dual-4-0", "ar-4-0"),
    ]


def test_a_command_without_a_baseline_leaves_the_word_to_the_one_before(sweep, empty_store, build):
    sweep({1: (1.0, 2.0)})
    build(
        "add_run",
        empty_store,
        build("run_row", "alone", invocation="invocation-2"),
        [build("generation")],
        makespan=1.0,
    )
    assert [a["run_id"] for a, _ in newest_pairs(empty_store.runs())] == ["dual-1-0"]


def test_a_run_that_helped_to_choose_a_setting_is_held_against_nothing(sweep, empty_store, build):
    sweep({1: (1.0, 2.0)})
    tuning = build("diffusion_row", "tuning")
    tuning["manifest"]["prompts"] = {**tuning["manifest"]["prompts"], "part": {"name": "tuning", "tuning_documents": 1}}
    build("add_run", empty_store, tuning, [build("diffusion_generation")], makespan=1.0)
    assert [a["run_id"] for a, _ in newest_pairs(empty_store.runs())] == ["dual-1-0"]


def test_the_baseline_of_a_run_without_one_of_its_own_is_the_autoregressive_run(stored):
    assert baseline_of(stored.run("dual-1"), stored.runs())["run_id"] == "ar-1"
    assert baseline_of(stored.run("ar-1"), stored.runs()) is None
