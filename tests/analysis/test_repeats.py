import numpy as np
import pytest

from dllm_audit.analysis.pairing import Comparisons
from dllm_audit.analysis.repeats import group_repeats, repeated_characters, repeated_speed, repeated_time
from dllm_audit.analysis.summary import summarise


def store_repeats(store, build, name, kind, makespans, seconds=(0.5,) * 6, **changed):
    """One run per makespan, six answers of four tokens in each, which take `seconds`; their summaries."""
    for number, makespan in enumerate(makespans):
        row = build(kind, f"{name}-{number}", repeat=number, **changed)
        build("add_run", store, row, [build("generation", seconds={"denoise": s}) for s in seconds], makespan=makespan)
    return [summarise(store, f"{name}-{number}") for number in range(len(makespans))]


def test_throughput_of_repeats_is_a_ratio_of_sums(empty_store, build):
    summaries = store_repeats(empty_store, build, "r", "run_row", [1.0, 2.0])
    (group,) = group_repeats(summaries)
    assert group.throughput.value == pytest.approx(48 / 3.0)  # not the mean of 24 and 12, which is 18
    assert (group.slowest, group.fastest) == (pytest.approx(12.0), pytest.approx(24.0))
    assert group.throughput.reason == "interval unknown: 2 of at least 5 repeats"


def test_five_repeats_have_an_interval_over_repeats(empty_store, build):
    (group,) = group_repeats(store_repeats(empty_store, build, "r", "run_row", [1.0, 1.1, 0.9, 1.2, 0.8]))
    assert group.throughput.basis == "5 repeats of 6 documents"
    assert group.throughput.low < 24.0 < group.throughput.high


def test_configurations_are_kept_apart(empty_store, build):
    ar = store_repeats(empty_store, build, "a", "run_row", [1.0, 1.0])
    dual = store_repeats(empty_store, build, "d", "diffusion_row", [1.0])
    assert [len(group.summaries) for group in group_repeats([*ar, *dual])] == [2, 1]


def test_speed_over_repeats_pairs_the_repeats_of_both_sides(empty_store, build):
    # Each repeat is twice as fast, though the machine's pace doubles from one to the next.
    ar = store_repeats(empty_store, build, "a", "run_row", [1.0, 2.0, 4.0, 2.0, 1.0])
    dual = store_repeats(empty_store, build, "d", "diffusion_row", [0.5, 1.0, 2.0, 1.0, 0.5])
    figure = repeated_speed(dual, ar)
    assert figure.value == pytest.approx(2.0)
    assert figure.low == pytest.approx(2.0)
    assert figure.high == pytest.approx(2.0)
    assert figure.basis == "5 repeats of 6 documents"


UNLIKE = (0.2, 0.4, 0.4, 0.6, 0.6, 0.8)


def test_repeats_that_are_all_alike_do_not_hide_how_documents_differ(empty_store, build):
    """Ten more runs of the same six documents say no more about a seventh."""
    ar = store_repeats(empty_store, build, "a", "run_row", [3.0] * 5)
    dual = store_repeats(empty_store, build, "d", "diffusion_row", [1.5] * 5, UNLIKE)
    figure = repeated_speed(dual, ar)
    # Seconds of a document over their mean, by Student's t of five degrees of freedom.
    half = 2.5706 * np.std(np.divide(UNLIKE, 0.5), ddof=1) / np.sqrt(6)
    assert figure.value == pytest.approx(2.0)
    assert (figure.low, figure.high) == pytest.approx((2 * np.exp(-half), 2 * np.exp(half)), rel=0.06)
    (group,) = group_repeats(dual)
    assert group.throughput.low < 0.8 * 16 < 1.2 * 16 < group.throughput.high
    characters = repeated_characters(dual, ar)  # six a document on both sides, as there are four tokens
    assert (characters.low, characters.high) == pytest.approx((figure.low, figure.high))
    time = repeated_time(dual, ar)
    assert (time.value, time.low < 0.9 < 1.1 < time.high) == (pytest.approx(1.0), True)


def test_where_requests_shared_forwards_repeats_alone_are_drawn(empty_store, build):
    ar = store_repeats(empty_store, build, "a", "run_row", [3.0] * 5, concurrency=4)
    dual = store_repeats(empty_store, build, "d", "diffusion_row", [1.5] * 5, UNLIKE, concurrency=4)
    figure = repeated_speed(dual, ar)
    assert (figure.low, figure.high, figure.basis) == (pytest.approx(2.0), pytest.approx(2.0), "5 repeats")


def test_repeats_of_different_documents_are_drawn_alone(empty_store, build):
    ar = store_repeats(empty_store, build, "a", "run_row", [3.0] * 5)
    dual = store_repeats(empty_store, build, "d", "diffusion_row", [1.5] * 5, UNLIKE[:5])
    assert repeated_speed(dual, ar).basis == "5 repeats"


def test_a_single_run_has_no_speed_over_repeats(empty_store, build):
    ar = store_repeats(empty_store, build, "a", "run_row", [1.0])
    dual = store_repeats(empty_store, build, "d", "diffusion_row", [0.5])
    assert repeated_speed(dual, ar) is None


def test_a_comparison_takes_characters_from_the_same_repeats_as_tokens(empty_store, build):
    store_repeats(empty_store, build, "a", "run_row", [1.0, 2.0, 2.0, 2.0, 2.0])
    store_repeats(empty_store, build, "d", "diffusion_row", [1.0] * 5)
    found = Comparisons(empty_store).compare("d-0", "a-0")
    assert (found.speed.value, found.characters.value) == pytest.approx((9 / 5, 9 / 5))
    assert found.characters.basis == found.speed.basis == "5 repeats of 6 documents"
