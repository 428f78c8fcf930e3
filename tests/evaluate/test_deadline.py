"""Foreign code that does not end is ended, and the alarm is gone afterwards."""

from __future__ import annotations

import signal
import threading

import pytest

from dllm_audit.errors import AuditError
from dllm_audit.evaluate.deadline import ends_within


def test_what_runs_too_long_is_ended_with_the_given_error():
    with pytest.raises(AuditError, match="too long"), ends_within(0.05, AuditError("too long")):
        sum(1 for _ in iter(int, 1))
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL


def test_what_ends_in_time_hears_nothing_also_when_it_fails_by_itself():
    with ends_within(60, AuditError("too long")):
        value = 1 + 1
    assert value == 2
    with pytest.raises(ZeroDivisionError), ends_within(60, AuditError("too long")):
        value = 1 // 0
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_outside_the_main_thread_nothing_is_bounded_and_nothing_breaks():
    seen = []

    def work() -> None:
        with ends_within(60, AuditError("too long")):
            seen.append(signal.getitimer(signal.ITIMER_REAL))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(0.0, 0.0)]


def test_foreign_code_that_takes_the_alarm_for_a_mistake_of_its_own_is_ended_all_the_same():
    """Jinja's compiler tries to compute constants, and leaves to the rendering what raises anything."""
    heard = []

    def foreign() -> None:
        try:
            sum(1 for _ in iter(int, 1))
        except AuditError:
            heard.append(1)
        sum(1 for _ in iter(int, 1))

    with pytest.raises(AuditError, match="too long"), ends_within(0.05, AuditError("too long")):
        foreign()
    assert heard == [1]
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
