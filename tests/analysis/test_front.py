"""Speed and quality together. Of `stored`: ar has 5 of 6 right, dualcache 4 at its threshold and 5 at one token per step."""

import pytest

from dllm_audit.analysis.front import front_of
from dllm_audit.errors import UsageError


def seconds(store, name):
    return next(point.mean_seconds for point in front_of(store, None, None).points if point.name.startswith(name))


def test_a_decoder_is_as_slow_as_the_setting_that_has_the_baselines_accuracy(stored):
    front = front_of(stored, None, None)
    assert (front.task, front.documents, front.asked, front.target) == ("gsm_mini", 6, 6, pytest.approx(5 / 6))
    assert front.target_of == "of ar on tiny-ar"
    dual = next(method for method in front.methods if method.name.startswith("dualcache"))
    assert dual.settings == 2
    assert dual.latency.seconds == pytest.approx(seconds(stored, "dualcache, 1 token/step"))


def test_an_accuracy_between_two_settings_takes_the_time_on_their_line(stored):
    dual = next(m for m in front_of(stored, "gsm_mini", 0.75).methods if m.name.startswith("dualcache"))
    fast, slow = seconds(stored, "dualcache, threshold"), seconds(stored, "dualcache, 1 token/step")
    assert dual.latency.seconds == pytest.approx((fast + slow) / 2)


def test_an_accuracy_that_no_setting_reaches_has_no_latency_and_says_why(stored):
    for method in front_of(stored, None, 0.9).methods:
        assert method.latency.seconds is None
        assert "no measured setting reaches 90.0 %" in method.latency.reason


def test_goodput_counts_the_requests_within_the_bound(stored):
    limit = (seconds(stored, "dualcache, threshold") + seconds(stored, "ar")) / 2
    within = {
        point.name.split(",")[0]: point.goodput(limit).within for point in front_of(stored, None, None).points[:2]
    }
    assert within == {"ar on tiny-ar": 0, "dualcache": 6}


def test_aup_is_of_all_settings_of_a_decoder_and_the_best_accuracy_of_any(stored):
    front = front_of(stored, None, None)
    assert front.best_accuracy == pytest.approx(5 / 6)
    dual = next(method for method in front.methods if method.name.startswith("dualcache"))
    # The threshold loses 17 points to one token per step, and AUP tolerates 5.
    assert dual.aup.value is None
    assert "16.7 points are lost" in dual.aup.reason
    ar = next(method for method in front.methods if method.name.startswith("ar"))
    assert ar.aup.reason == "one setting is no curve: it takes two or more"


def test_aup_adds_up_what_every_setting_keeps(empty_store, build):
    """8 tokens in 8 forwards and in 4, all right: 1 x 100 up to one token per forward, and 1 x 100 from one to two."""
    for run_id, threshold, forwards in (("a", 0.99, 8), ("b", 0.9, 4)):
        settings = {"gen_length": 64, "block_length": 32, "threshold": threshold}
        row = build("diffusion_row", run_id, settings=settings, setting_sources={"threshold": "option"})
        answers = [build("diffusion_generation", forwards={"denoise": forwards}, committing=forwards) for _ in range(4)]
        build("add_run", empty_store, row, answers, [1] * 4, makespan=1.0)
    (dual,) = front_of(empty_store, None, None).methods
    answered = answers[0].answered_tokens
    assert dual.aup.value == pytest.approx(100 * answered / 4)


def test_a_repeat_stands_for_its_configuration_once_and_a_control_not_at_all(empty_store, build):
    for run_id, changed in (("a", {}), ("b", {"repeat": 1}), ("c", {"role": "control"})):
        row = build("run_row", run_id, **changed)
        build("add_run", empty_store, row, [build("generation") for _ in range(4)], [1, 1, 1, 0], makespan=2.0)
    front = front_of(empty_store, None, None)
    assert [(point.name, point.summary.run_id) for point in front.points] == [("ar on tiny-ar", "b")]


def test_what_cannot_be_taken_along_is_named_with_the_reason(empty_store, build):
    many = [build("generation") for _ in range(4)]
    build("add_run", empty_store, build("run_row", "a"), many, [1, 1, 1, 0], makespan=2.0)
    build("add_run", empty_store, build("run_row", "b", concurrency=4), many, [1, 1, 1, 0], makespan=2.0)
    build("add_run", empty_store, build("run_row", "c"), many, [1, 1, 1, 0], makespan=2.0, status="interrupted")
    assert [reason for _, reason in front_of(empty_store, None, None).left_out] == [
        "requests shared forwards or queued, so that latencies are those of that load",
        "interrupted, not complete",
    ]


def test_only_documents_that_every_configuration_answered_count(empty_store, build):
    build(
        "add_run",
        empty_store,
        build("run_row", "a"),
        [build("generation") for _ in range(4)],
        [1, 1, 1, 0],
        makespan=2.0,
    )
    fewer = build("diffusion_row", "b")
    build("add_run", empty_store, fewer, [build("diffusion_generation") for _ in range(2)], [1, 0], makespan=2.0)
    front = front_of(empty_store, None, None)
    assert (front.documents, front.asked) == (2, 6)
    first = next(point for point in front.points if point.name.startswith("ar"))
    assert (first.accuracy.rate, first.accuracy.trials, len(first.seconds)) == (1.0, 2, 2)


def test_a_place_does_not_hang_on_what_single_runs_differ_by(empty_store, build):
    """1.05x faster at the same accuracy, beyond the intervals over requests, and yet no place is decided by it."""
    for run_id, makespan, threshold in (("a", 60.0, 0.8), ("b", 57.0, 0.9)):
        settings = {"gen_length": 64, "block_length": 32, "threshold": threshold}
        row = build("diffusion_row", run_id, settings=settings, setting_sources={"threshold": "option"})
        results = [build("diffusion_generation", seconds={"denoise": makespan / 60}) for _ in range(60)]
        build("add_run", empty_store, row, results, [1] * 60, makespan=makespan)
    assert [place.verdict for place in front_of(empty_store, None, None).places] == ["open", "open"]


def test_a_run_whose_times_are_not_reliable_has_no_place(empty_store, build):
    row = build("run_row", "a")
    row["manifest"] = {**row["manifest"], "books": {"discrepancy": 3.0}}
    build("add_run", empty_store, row, [build("generation") for _ in range(4)], [1, 1, 1, 0], makespan=2.0)
    build(
        "add_run", empty_store, build("diffusion_row", "b"), [build("diffusion_generation")] * 4, [1] * 4, makespan=1.0
    )
    front = front_of(empty_store, None, None)
    assert [point.summary.run_id for point in front.points] == ["b"]
    assert front.left_out == (("ar, concurrency 1", "times are not reliable: its books do not close"),)


def test_a_file_without_a_finished_run_says_how_to_make_some(empty_store):
    with pytest.raises(UsageError, match="holds no finished run that answers one request at a time"):
        front_of(empty_store, None, None)
