"""Shares of the bound and the decomposition of a speed, on numbers that a person can follow."""

import pytest

from dllm_audit.analysis.bounds import Decomposition, Factor, decompose, shares_of_bound, work_of
from dllm_audit.analysis.summary import summarise
from dllm_audit.measure.roofline import Work
from dllm_audit.records import ForwardShape

#: 1,000 weights of two bytes take 2 s to read, and a position 1 s to multiply.
SLOW = {"name": "slow", "bandwidth": 1000.0, "peak": 2000.0, "status": "measured", "cache_bytes": 100}
ROOFLINE = {"dimensions": {"body": 1000}, "bytes_per_weight": 2, "device": SLOW}


def row(build, name="run_row", run_id="r", roofline=ROOFLINE, **changed):
    base = build(name, run_id)
    return {**base, "manifest": {**base["manifest"], "roofline": roofline}, **changed}


def test_each_kind_of_forward_has_its_share_and_all_together_theirs(build):
    # Four steps of one position: 2 s each at least, 10 s measured. A prefill of 5 positions: 5 s at least, 10 s measured.
    shares = shares_of_bound(
        row(build), [build("shape", "denoise", 1, 1, 4, 10.0), build("shape", "prefill", 5, 1, 1, 10.0)]
    )
    assert [(k.kind, k.count, k.bound_seconds, k.measured_seconds, k.share, k.limited_by) for k in shares.kinds] == [
        ("prefill", 1, 5.0, 10.0, 0.5, "compute"),
        ("denoise", 4, 8.0, 10.0, 0.8, "memory"),
    ]
    assert (shares.total.value, shares.total.status) == (13 / 20, "modelled")
    assert shares.applicable


def test_forwards_of_several_widths_are_bounded_each_by_itself(build):
    # 1 position: 2 s of reading. 3 positions: 3 s of multiplying.
    shares = shares_of_bound(
        row(build), [build("shape", "denoise", 1, 1, 1, 4.0), build("shape", "denoise", 3, 1, 1, 4.0)]
    )
    assert shares.kinds[0].bound_seconds == 5.0
    assert shares.kinds[0].memory_seconds == 2.0


def test_weights_that_live_in_the_cache_have_no_share_and_the_sentence_says_why(build):
    roofline = {**ROOFLINE, "device": {**SLOW, "cache_bytes": 2**21}}
    shares = shares_of_bound(row(build, roofline=roofline), [build("shape", "denoise", 1, 1, 1, 4.0)])
    assert shares.total.value is None
    assert shares.total.reason == (
        "not applicable: the weights (0.00191 MiB) fit into the last-level cache (2 MiB), "
        "so a share of what memory allows means nothing"
    )
    assert shares.kinds[0].bound_seconds == 1.0  # multiplying alone
    assert shares.as_dict()["kinds"][0]["share"] is None


def test_a_share_above_one_is_shown_with_its_cause(build):
    shares = shares_of_bound(row(build), [build("shape", "denoise", 1, 1, 1, 1.0)])
    assert shares.total.value == 2.0
    assert shares.total.reason == "above 1: the device was faster in the run than when its speed was measured"


@pytest.mark.parametrize(
    "roofline", [None, {}, {**ROOFLINE, "device": None}, {**ROOFLINE, "dimensions": {"body": "x"}}, {**ROOFLINE, "bytes_per_weight": 0}]
)  # fmt: skip
def test_a_run_without_sizes_or_device_has_no_share(build, roofline):
    shares = shares_of_bound(row(build, roofline=roofline), [build("shape", "denoise", 1, 1, 1, 1.0)])
    assert (shares.total.value, shares.kinds) == (None, ())
    assert shares.total.reason == "the model's sizes or the device's speed were not recorded with the run"


def test_a_run_without_a_log_has_no_share(build):
    assert shares_of_bound(row(build), []).total.reason == "the engine stored no log of its forwards"
    damaged = build("shape", "denoise", 1, 1, 1, float("nan"))
    assert shares_of_bound(row(build), [damaged]).total.reason == "the engine stored no log of its forwards"


def test_the_log_of_a_killed_sitting_is_missing_and_the_share_unknown(empty_store, build):
    build("add_run", empty_store, row(build), [build("generation")], [1])
    assert (
        summarise(empty_store, "r").bound.total.reason == "a sitting was killed before its log of forwards was stored"
    )


def shape(kind, width, rows, count, decided, keys):
    return ForwardShape(kind, width, rows, count, 1.0, decided, keys)


@pytest.mark.parametrize(
    ("of", "attention", "work"),
    [
        # The block of a dual cache, 2 rows: 8 of 40 columns, 3 of each row's 8 positions decided on average.
        (shape("denoise", 8, 2, 10, 60, 400), "bidirectional", Work(16, 6, 2 * 8 * 40, 2 * 32, 16)),
        # Without a cache nothing is kept.
        (shape("denoise", 40, 1, 10, 30, 400), "bidirectional", Work(40, 3, 1600)),
        # A refresh sees all and keeps all.
        (shape("refresh", 40, 1, 1, 3, 40), "bidirectional", Work(40, 3, 1600, 0, 40)),
        # A causal prompt sees half of itself; a causal step all before it.
        (shape("prefill", 4, 1, 1, 1, 4), "causal", Work(4, 1, 10, 0, 4)),
        (shape("denoise", 1, 3, 2, 6, 20), "causal", Work(3, 3, 30, 27, 3)),
        # A block-causal prompt in blocks of 2.
        (shape("prefill", 4, 1, 1, 0, 4), "block", Work(4, 0, 12, 0, 4)),
    ],
)
def test_what_a_stored_shape_computed(of, attention, work):
    assert work_of(of, attention, grid=2, guided=False) == work


def test_guidance_runs_every_row_twice():
    of = shape("denoise", 40, 1, 10, 30, 400)
    assert work_of(of, "bidirectional", 1, guided=True) == Work(80, 6, 3200)


@pytest.fixture
def pair(empty_store, build):
    """ar: 24 tokens in 30 forwards and 100 s. dual: 24 tokens in 24 forwards of 8 positions or 18 and 300 s."""
    build(
        "add_run", empty_store, row(build, run_id="ar"), [build("generation")] * 6, makespan=100.0,
        shapes=[build("shape", "prefill", 10, 1, 6, 15.0), build("shape", "denoise", 1, 1, 24, 60.0)],
    )  # fmt: skip
    build(
        "add_run", empty_store, row(build, "diffusion_row", "dual"), [build("diffusion_generation")] * 6, makespan=300.0,
        shapes=[build("shape", "refresh", 18, 1, 6, 120.0), build("shape", "denoise", 8, 1, 18, 150.0)],
    )  # fmt: skip
    return summarise(empty_store, "dual"), summarise(empty_store, "ar")


def test_the_factors_of_a_speed_by_hand(pair):
    found = decompose([pair[0]], [pair[1]])
    # ar: 6 x 10 s + 24 x 2 s = 108 s of bound; dual: 6 x 18 s + 18 x 8 s = 252 s.
    assert [(f.name, f.candidate, f.baseline) for f in found.factors] == [
        ("tokens per forward", 24 / 24, 24 / 30),
        ("forwards per second at the bound", pytest.approx(24 / 252), pytest.approx(30 / 108)),
        ("bound over wall time", pytest.approx(252 / 300), pytest.approx(108 / 100)),
    ]
    assert found.algorithm == pytest.approx(108 / 252)
    assert found.engine == pytest.approx(0.84 / 1.08)


def test_the_factors_multiply_to_the_ratio_of_the_throughputs(pair):
    found = decompose([pair[0]], [pair[1]])
    measured = pair[0].throughput.value / pair[1].throughput.value
    assert found.ratio == pytest.approx(measured, rel=1e-9)
    assert found.algorithm * found.engine == pytest.approx(measured, rel=1e-9)


def test_the_share_of_the_bound_is_measured_per_kind_and_what_is_left_is_outside_forwards(pair):
    found = decompose([pair[0]], [pair[1]])
    assert [(k.kind, k.bound_seconds, k.measured_seconds) for k in found.candidate.kinds] == [
        ("denoise", 144.0, 150.0),
        ("refresh", 108.0, 120.0),
    ]
    assert found.candidate.outside_seconds == pytest.approx(30.0)
    assert found.baseline.outside_seconds == pytest.approx(25.0)


def test_repeats_of_a_side_add_up(pair):
    once, twice = decompose([pair[0]], [pair[1]]), decompose([pair[0]] * 2, [pair[1]] * 3)
    assert twice.ratio == pytest.approx(once.ratio, rel=1e-9)
    assert twice.candidate.tokens == 48


def test_both_sides_are_bounded_by_the_fastest_measurement_of_the_device(empty_store, build):
    for run_id, change in (("a", {"bandwidth": 2000.0}), ("b", {"peak": 4000.0})):
        roofline = {**ROOFLINE, "device": {**SLOW, **change}}
        shapes = [build("shape", "denoise", 1, 1, 1, 4.0)]
        build(
            "add_run",
            empty_store,
            row(build, run_id=run_id, roofline=roofline),
            [build("generation")],
            makespan=5.0,
            shapes=shapes,
        )
    found = decompose([summarise(empty_store, "a")], [summarise(empty_store, "b")])
    assert [side.bound_seconds for side in (found.candidate, found.baseline)] == [1.0, 1.0]


def in_cache(pair, build, store):
    """The pair once more, with weights that fit into the cache."""
    roofline = {**ROOFLINE, "device": {**SLOW, "cache_bytes": 2**21}}
    shapes = [build("shape", "prefill", 10, 1, 6, 20.0), build("shape", "denoise", 1, 1, 24, 60.0)]
    build("add_run", store, row(build, run_id="ar-2", roofline=roofline), [build("generation")] * 6, makespan=100.0,
          shapes=shapes)  # fmt: skip
    return summarise(store, "ar-2")


def test_models_in_the_cache_are_decomposed_by_what_was_measured_and_the_sentence_says_why(pair, build, empty_store):
    found = decompose([pair[0]], [in_cache(pair, build, empty_store)])
    assert [(f.name, f.candidate, f.baseline) for f in found.factors] == [
        ("tokens per forward", 24 / 24, 24 / 30),
        ("forwards per second of their own time", pytest.approx(24 / 270), pytest.approx(30 / 80)),
        ("share of the wall time in forwards", pytest.approx(270 / 300), pytest.approx(80 / 100)),
    ]
    assert found.ratio == pytest.approx((24 / 300) / (24 / 100), rel=1e-9)
    assert (found.algorithm, found.engine, found.candidate.bound_seconds) == (None, None, None)
    assert found.sentence == (
        "The candidate answers 1.25x the tokens per forward, its forwards run at 0.237x the rate, and they take 90% of its "
        "time against 80% of the baseline's. What of that is the algorithm's and what the engine's cannot be told: of "
        "tiny-ar, the weights (0.00191 MiB) fit into the last-level cache (2 MiB), so a share of what memory allows means "
        "nothing."
    )


def test_the_sentence_tells_the_algorithm_from_the_engine(pair):
    assert decompose([pair[0]], [pair[1]]).sentence == (
        "Two perfect engines would leave 0.429x, which is the algorithm's part; 0.778x is the engine's, since the "
        "candidate's bound is 84% of its wall time and the baseline's 108%."
    )


def test_printed_factors_multiply_to_the_printed_ratio():
    def factor(value):
        return Factor("f", "x", value, 1.0)

    # 1.004 x 1.004 x 1.004 is 1.012, and so is 1.00 x 1.00 x 1.00 not.
    found = Decomposition((factor(1.004), factor(1.004), factor(1.004)))
    assert found.texts("{:.3f}".format) == ("1.004", "1.004", "1.004")
    assert found.texts("{:.1f}".format) == ("1.00", "1.00", "1.00")
    assert Decomposition((factor(20.0), factor(0.05), factor(2.5))).texts("{:.3f}".format) == ("20.0", "0.0500", "2.50")


def test_what_cannot_be_decomposed_says_why(empty_store, build, pair):
    build("add_run", empty_store, build("run_row", "old"), [build("generation")], makespan=1.0)
    elsewhere = row(build, run_id="elsewhere")
    elsewhere["manifest"] = {**elsewhere["manifest"], "environment": {"device": "cuda:0", "gpu": "H200"}}
    build("add_run", empty_store, elsewhere, [build("generation")], makespan=1.0)
    old, other = summarise(empty_store, "old"), summarise(empty_store, "elsewhere")
    assert decompose([], [old]).reason == "one side has no run"
    assert decompose([], [old]).ratio is None
    assert decompose([old], [pair[1]]).reason == (
        "the model's sizes or the device's speed were not recorded with the run"
    )
    assert decompose([other], [pair[1]]).reason == "the runs were made on different devices"
    assert decompose([other], [pair[1]]).bounded is False


def test_without_a_log_of_forwards_there_are_no_factors(empty_store, build, pair):
    build("add_run", empty_store, row(build, run_id="bare"), [build("generation")], [1])
    found = decompose([summarise(empty_store, "bare")], [pair[1]])
    assert (found.factors, found.ratio) == ((), None)
    assert found.sentence.startswith("Where the speed comes from is not known: ")


def test_a_decomposition_as_plain_values(pair):
    facts = decompose([pair[0]], [pair[1]]).as_dict()
    assert facts["ratio"] == pytest.approx((24 / 300) / (24 / 100))
    assert [factor["name"] for factor in facts["factors"]] == [
        "tokens per forward", "forwards per second at the bound", "bound over wall time",
    ]  # fmt: skip
    assert facts["baseline"]["outside_forwards_seconds"] == pytest.approx(25.0)
