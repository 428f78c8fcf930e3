"""The exception tree. Every message says what happened, with the value; why; and what to do next.

Commands print the message alone, without a traceback, and exit with `exit_status`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dllm_audit.records import EngineLog


class AuditError(Exception):
    """A mistake or a limit that a person can do something about. Exit status 3: the run failed."""

    exit_status = 3


class UsageError(AuditError):
    """Wrong use: an unknown name, a setting that does not fit, a missing file. Exit status 2."""

    exit_status = 2


class SettingError(UsageError):
    """A decode setting that is unknown, malformed, or does not fit the others."""


class ModelError(UsageError):
    """A model that cannot be found, read, or used by this backend."""


class TaskError(UsageError):
    """A task that cannot be found or loaded."""


class StoreError(UsageError):
    """A results file that cannot be opened, read or written."""


class StoreWriteError(StoreError):
    """A result that could not be kept, for example because the disk is full. Not wrong use: the run failed."""

    exit_status = 3


class ClaimError(UsageError):
    """A claim file that is not valid; the message names file and line."""


class RequestError(AuditError):
    """One request that cannot be decoded, for example an over-long prompt. The others go on."""


class OutOfMemory(AuditError):
    """Something that does not fit into the device's memory, even alone."""


class BackendError(AuditError):
    """A backend that broke what it promises: a result that cannot be true, or none. What had finished is kept."""


class DeviceError(AuditError):
    """A device that failed while it was at work. What had finished is kept; nothing more can be run on it."""


class Interrupted(AuditError):
    """A person stopped the work. What had finished is kept. `log`: what the engine did until then, if it was at work."""

    exit_status = 130

    def __init__(self, message: str, log: EngineLog | None = None) -> None:
        super().__init__(message)
        self.log = log


MOST_NAMES = 10
"""About so many names are listed where one is unknown: a screen full of them helps nobody."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown `name`: the nearest known names, or some of them when none is near."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.54)
    if near:
        return "Did you mean " + " or ".join(repr(n) for n in near) + "?"
    if not names:
        return "None is known."
    if len(names) <= MOST_NAMES + 2:
        return "Known: " + ", ".join(names) + "."
    return f"Known: {', '.join(names[:MOST_NAMES])} and {len(names) - MOST_NAMES} more."
