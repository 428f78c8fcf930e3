"""An end for foreign code that is expected to take a moment, such as a template: the sandbox of Jinja bounds no time."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dllm_audit.errors import AuditError


@contextmanager
def ends_within(seconds: float, error: AuditError) -> Iterator[None]:
    """Raise `error` inside the block when it has run for `seconds`, in whatever Python code it is then.

    It takes an alarm of the operating system, which only the main thread has and Windows has not: no bound there.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number: int, frame: Any) -> None:
        raise error

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
