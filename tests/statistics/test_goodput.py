import numpy as np
import pytest

from dllm_audit.statistics.goodput import ServedRequest, ServedRun, correct_per_second, goodput
from dllm_audit.statistics.proportions import wilson_interval


def generator():
    return np.random.default_rng(20251129)


def run(*seconds, correct=None, failed=(), makespan=None):
    requests = tuple(ServedRequest(s, n not in failed, correct) for n, s in enumerate(seconds))
    return ServedRun(requests, sum(seconds) if makespan is None else makespan)


def test_goodput_counts_answers_up_to_the_bound_per_second_of_makespan():
    found = goodput([run(1.0, 2.0, 3.0, 4.0, makespan=20.0)], 2.0, level="batch", generator=generator())
    assert (found.within, found.requests) == (2, 4)
    assert found.share.ratio == 0.5
    assert found.per_second.ratio == pytest.approx(2 / 20)


def test_a_request_that_failed_quickly_was_not_answered_in_time():
    found = goodput([run(1.0, 0.1, 1.0, failed={1})], 2.0, level="batch", generator=generator())
    assert (found.within, found.requests) == (2, 3)


def test_the_share_of_requests_that_stand_alone_has_wilsons_interval():
    found = goodput([run(*[1.0] * 30, *[3.0] * 10)], 2.0, level="batch", generator=generator())
    wilson = wilson_interval(30, 40)
    assert (found.share.low, found.share.high) == (wilson.low, wilson.high)
    assert found.per_second.low < found.per_second.ratio < found.per_second.high


def test_requests_that_share_forwards_need_five_runs_for_an_interval():
    one = run(*[1.0] * 30, *[3.0] * 10, makespan=8.0)
    few = goodput([one] * 4, 2.0, level="repeat", generator=generator())
    assert (few.share.ratio, few.per_second.ratio) == (0.75, 30 / 8)
    assert (few.share.reason, few.per_second.reason) == ("unknown: 4 of at least 5 repeats",) * 2
    enough = goodput([one] * 5, 2.0, level="repeat", generator=generator())
    assert (enough.share.low, enough.share.high) == (0.75, 0.75)


def test_correct_answers_per_second_are_a_ratio_of_sums():
    right, wrong = run(1.0, 1.0, correct=True), run(4.0, 4.0, correct=False)
    assert correct_per_second([right, wrong], level="batch", generator=generator()).ratio == pytest.approx(2 / 10)


def test_correct_answers_cannot_be_counted_where_nobody_judged():
    with pytest.raises(ValueError, match="was not judged"):
        correct_per_second([run(1.0)], level="batch", generator=generator())


def test_a_bound_of_zero_is_refused():
    with pytest.raises(ValueError, match=r"^A latency bound lies above 0 seconds, not 0\.$"):
        goodput([run(1.0)], 0, level="batch", generator=generator())


def test_where_no_request_counts_the_rate_is_zero_without_an_interval():
    run = ServedRun(tuple(ServedRequest(1.0, True, False) for _ in range(50)), 50.0)
    found = goodput([run], 0.5, level="batch", generator=np.random.default_rng(0)).per_second
    assert (found.ratio, found.low, found.high) == (0.0, None, None)
    assert found.reason
