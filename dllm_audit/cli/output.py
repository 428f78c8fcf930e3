"""Files that commands write for a person: never over the results, never over somebody else's file, never by halves."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

from dllm_audit.errors import AuditError, UsageError

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)


def check_target(path: Path, database: Path, is_ours: Callable[[Path], bool], what: str, default: str) -> None:
    """Raise UsageError where `path` must not be written.

    is_ours: whether an existing file is an earlier `what`, which may be replaced. default: a file name to suggest.
    """
    spare_results(path, database)
    if path.is_dir():
        raise UsageError(f"{path} is a folder. Give a file with -o, for example -o {path / default}")
    if is_special(path):
        return
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise UsageError(f"The folder {target.parent if path.is_symlink() else path.parent} does not exist. "
                         "Make it, or give another file with -o.")  # fmt: skip
    try:
        foreign = target.exists() and target.stat().st_size > 0 and not is_ours(target)
    except OSError as error:
        raise could_not_write(path, error) from error
    if foreign:
        raise UsageError(
            f"{path} exists and is no earlier {what} of this tool, so it is not replaced. "
            "Give another file with -o, or remove it first."
        )


def spare_results(path: Path, database: Path) -> None:
    """Raise UsageError where writing `path` would destroy the results that are read."""
    ours = os.path.realpath(path)
    for kept in (database, database.with_name(database.name + ".wal")):
        same = ours == os.path.realpath(kept)
        if not same and path.exists() and kept.exists():
            same = os.path.samefile(path, kept)  # a hard link
        if same:
            raise UsageError(f"{path} holds the results (--db {database}). Give another file with -o.")


def is_special(path: Path) -> bool:
    """Whether `path` is there and no regular file (a device, a pipe, this program's own output): written through."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) or is_stdout(path)


def is_stdout(path: Path) -> bool:
    """Whether `path` names the standard output of this process."""
    return str(path) in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")


def write_whole(path: Path, content: str | bytes) -> None:
    """Write so that `path` is either the old file or the whole new one, never a part. A link stays a link."""
    import tempfile

    data = content.encode("utf-8") if isinstance(content, str) else content
    try:
        if is_stdout(path):
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
            return
        if is_special(path):
            with open(path, "wb") as file:
                file.write(data)
            return
        target = Path(os.path.realpath(path))
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(name, 0o666 & ~mask)
            os.replace(name, target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise could_not_write(path, error) from error


def could_not_write(path: Path, error: OSError) -> AuditError:
    """The sentence that fits the cause: a full disk is no wrong use, a place that may not be written is."""
    return _failure(path, error.strerror or str(error), error.errno)


def could_not_copy(path: Path, message: str) -> AuditError:
    """The same from the words of another program."""
    lower = message.lower()
    if "no space left" in lower or "disk quota" in lower:
        return _failure(path, "No space left on device", errno.ENOSPC)
    if "permission denied" in lower or "read-only" in lower:
        return _failure(path, "Permission denied", errno.EACCES)
    return _failure(path, message, None)


def _failure(path: Path, why: str, number: int | None) -> AuditError:
    if number in _NO_ROOM:
        return AuditError(f"{path} could not be written: {why}. Make room, or give another place with -o.")
    if number in _NOT_ALLOWED:
        return UsageError(f"{path} may not be written: {why}. Give another place with -o.")
    return AuditError(f"{path} could not be written: {why.rstrip('.')}. Give another place with -o.")
