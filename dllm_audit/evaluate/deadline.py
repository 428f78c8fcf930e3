"""An end for foreign code that is expected to take a moment, such as a template: the sandbox of Jinja bounds no time."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dllm_audit.errors import AuditError, TaskError

#: A template takes about a millisecond for a document; it comes with a model or a task, so it may be anything.
TEMPLATE_SECONDS = 10.0

#: Some foreign code takes whatever is raised inside it for a mistake of its own and goes on, as Jinja's compiler does.
_AGAIN_SECONDS = 0.5

#: Of a template that does not end, so many characters are shown.
_SHOWN = 100


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
    signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def template_ends(what: str, advice: str = "") -> Iterator[None]:
    """An end for one rendering of a template: a TaskError that says what did not end, and the advice."""
    words = f"{what} did not end within {TEMPLATE_SECONDS:g} s for one document. {advice}".rstrip()
    with ends_within(TEMPLATE_SECONDS, TaskError(words)):
        yield


@contextmanager
def task_templates_end(name: str) -> Iterator[None]:
    """Inside the block each rendering by lm-eval of a template of task `name` ends, wherever it happens."""
    from lm_eval import utils

    render = utils.apply_template

    def bounded(template: str, document: dict[str, Any]) -> str:
        shown = template if len(template) <= _SHOWN else template[: _SHOWN - 1] + "…"
        with template_ends(f"A template of task {name!r}", f"Mend it in the task's YAML file: {shown!r}"):
            return render(template, document)

    utils.apply_template = bounded
    try:
        yield
    finally:
        utils.apply_template = render
