"""The tables of "Diffusion language models: decoding steps, caching and real speed" to the digit, and what they leave out."""

from dataclasses import replace

import pytest

from dllm_audit.measure.roofline import DeviceSpeed, Roofline, Work
from dllm_audit.measure.roofline_plans import Crossing, RequestShape, crossings, plans
from dllm_audit.models.dimensions import Dimensions

H100 = DeviceSpeed("H100 SXM", 3.352e12, 989.4e12, "datasheet")
TEACHING = Roofline(Dimensions.of_size(7e9), 2, H100)
REQUEST = RequestShape(prompt=512, gen_length=256, block_length=32, tokens_per_step=4)
PLANS = {plan.decoder: plan for plan in plans(REQUEST)}


@pytest.mark.parametrize(
    ("decoder", "milliseconds"),
    [("ar", 1076), ("uncached-1", 2782), ("uncached", 696), ("block", 275), ("block+commit", 308)],
)
def test_latencies_of_the_teaching_note(decoder, milliseconds):
    assert round(PLANS[decoder].seconds(TEACHING) * 1e3) == milliseconds


@pytest.mark.parametrize(
    ("rows", "in_order", "in_blocks"), [(1, 239, 958), (8, 1915, 7662), (64, 15323, 8834), (295, 70631, 8834)]
)
def test_throughputs_of_the_teaching_note(rows, in_order, in_blocks):
    assert round(PLANS["ar"].tokens_per_second(TEACHING, rows)) == in_order
    assert round(PLANS["block"].tokens_per_second(TEACHING, rows)) == in_blocks


def test_knee_and_crossover_of_the_teaching_note():
    assert round(TEACHING.knee()) == 295
    assert crossings(TEACHING, [PLANS["ar"], PLANS["block"]], most=4096)["block"] == Crossing(1, 37, 4096)


def test_there_may_be_no_crossover_up_to_a_concurrency():
    assert crossings(TEACHING, [PLANS["ar"], PLANS["block"]], most=36)["block"].crossover is None


def test_a_decoder_that_is_never_faster_crosses_at_one():
    assert crossings(TEACHING, [PLANS["ar"], PLANS["uncached-1"]], most=100)["uncached-1"] == Crossing(None, 1, 100)


def test_blocks_of_a_mixture_are_slower_at_first_because_one_token_reads_few_experts():
    # 120 of 128 experts a forward for a block of 32, 8 of them for one token.
    mixture = replace(TEACHING, dimensions=Dimensions.of_size(30.5e9, 3.3e9, 128, 8))
    found = crossings(mixture, [PLANS["ar"], PLANS["block"]], most=4096)["block"]
    block, ar = (PLANS[name].tokens_per_second for name in ("block", "ar"))
    assert found.faster_from > 1
    assert block(mixture, found.faster_from - 1) <= ar(mixture, found.faster_from - 1)
    assert block(mixture, found.faster_from) > ar(mixture, found.faster_from)
    assert block(mixture, found.crossover) <= ar(mixture, found.crossover)


def test_keys_and_values_cap_autoregressive_decoding_so_that_it_never_catches_up():
    # Each of 64 rows reads 4,096 columns of 131,072 bytes: 34.4 GB beside 14 GB of weights.
    attention = replace(TEACHING.dimensions, layers=32, heads=8, kv_heads=8, head_dim=128)
    roofline = replace(TEACHING, dimensions=attention)
    found = {plan.decoder: plan for plan in plans(REQUEST, context=4096)}
    bytes_read = 1.4e10 + 64 * 4096 * 131072
    assert found["ar"].tokens_per_second(roofline, 64) == pytest.approx(64 * 3.352e12 / bytes_read)
    assert found["ar"].tokens_per_second(roofline, 64) == pytest.approx(4440, rel=0.001)
    assert crossings(roofline, [found["ar"], found["block"]], most=4096)["block"].crossover is None


def test_forwards_of_each_decoder():
    assert {name: dict(plan.forwards) for name, plan in PLANS.items()} == {
        "ar": {"prefill": 1, "denoise": 256},
        "uncached-1": {"denoise": 256},
        "uncached": {"denoise": 64},
        "prefixcache": {"refresh": 8, "denoise": 56},
        "dualcache": {"refresh": 8, "denoise": 56},
        "block": {"prefill": 1, "denoise": 64},
        "block+commit": {"prefill": 1, "denoise": 64, "commit": 8},
    }


def test_one_token_per_step_is_one_uncached_decoder():
    assert [plan.decoder for plan in plans(replace(REQUEST, tokens_per_step=1))][:3] == [
        "ar",
        "uncached-1",
        "prefixcache",
    ]


def test_a_last_block_may_be_short_and_takes_its_own_steps():
    # 20 tokens in blocks of 8 at 4 per step: 2 + 2 + 1 steps.
    found = {plan.decoder: plan for plan in plans(RequestShape(10, 20, 8, 4))}
    assert dict(found["block+commit"].forwards) == {"prefill": 1, "denoise": 5, "commit": 3}


def test_what_the_steps_of_a_decoder_compute():
    # Prompt 4, 4 tokens in blocks of 2, one per step: 8 columns.
    found = {plan.decoder: plan for plan in plans(RequestShape(4, 4, 2, 1))}
    prefix, dual, block = found["prefixcache"], found["dualcache"], found["block"]
    # Blocks have 2, then 1 masked positions; the mean of all steps is 1.5, that of the steps after a refresh is 1.
    assert found["uncached-1"].steps[0].work == Work(8, 1.5, pairs=64)
    assert [(step.kind, step.count, step.work) for step in dual.steps] == [
        ("refresh", 2, Work(8, 2, pairs=64, columns_written=8)),
        ("denoise", 2, Work(2, 1, pairs=16, columns_read=6, columns_written=2)),
    ]
    assert [(step.kind, step.count, step.work) for step in prefix.steps] == [
        ("refresh", 2, Work(8, 2, pairs=64, columns_written=8)),
        ("denoise", 1, Work(4, 1, pairs=32, columns_read=4, columns_written=4)),
        ("denoise", 1, Work(2, 1, pairs=16, columns_read=6, columns_written=2)),
    ]
    # Blocks end at columns 6 and 8: 7 are visible on average.
    assert block.steps[0].work == Work(2, 1.5, pairs=14, columns_read=5, columns_written=2)
    assert found["ar"].steps[0].work == Work(1, 1, pairs=6.5, columns_read=5.5, columns_written=1)


def test_many_blocks_are_taken_together_without_losing_a_forward():
    plan = next(plan for plan in plans(RequestShape(4, 100, 1, 1)) if plan.decoder == "block")
    narrow = next(plan for plan in plans(RequestShape(4, 200, 2, 1)) if plan.decoder == "prefixcache")
    assert plan.forwards["denoise"] == 100
    assert len(narrow.steps) <= 1 + 32
    assert narrow.forwards == {"refresh": 100, "denoise": 100}
    # Widths 200, 198, ... 2: their mean is kept.
    assert sum(s.count * s.work.positions for s in narrow.steps[1:]) == pytest.approx(100 * 101)


def test_the_prefill_counts_where_it_is_asked_for():
    ar = PLANS["ar"]
    decode = 256 * 1.4e10 / 3.352e12
    assert ar.tokens_per_second(TEACHING, 1) == pytest.approx(256 / decode)
    assert ar.tokens_per_second(TEACHING, 1, prefill=True) == pytest.approx(256 / (decode + 512 * 1.4e10 / 989.4e12))


def test_what_limits_the_decode_phase():
    assert [PLANS["block"].limited_by(TEACHING, rows) for rows in (1, 9, 10)] == ["memory", "memory", "compute"]
