"""Files that are opened by the name that somebody gave: regular ones only."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from dllm_audit.errors import AuditError

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def refuse_special(path: Path, error: type[AuditError]) -> None:
    """Raise `error` where opening or reading `path` might never end: it is a pipe, a socket or a device.

    What is not there, or is a folder, is for the reader to say. A pipe without a name, as a shell makes it for
    `<(command)`, has somebody who writes, and is let through.
    """
    try:
        kind = _KINDS.get(stat.S_IFMT(os.stat(path).st_mode))
    except (OSError, ValueError):
        return
    if kind is not None and os.path.exists(os.path.realpath(path)):
        raise error(f"{path} is {kind} and no regular file, and reading it might never end. Give a file.")
