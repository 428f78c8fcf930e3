"""The program inside the sandbox: scores one answer after the other, each in a restricted process of its own.

`sandbox` starts it in an interpreter of its own. It reads pickles from its parent, which it
trusts, and answers in lines of JSON, because whoever reads those trusts nothing that comes out of here.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import os
import pickle
import platform
import select
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Above what the worker itself has mapped, for each process.
MEMORY_BYTES = 1 << 30
FILE_BYTES = 16 << 20
#: At once, above those that the person has running.
PROCESSES = 64
#: What one answer may say about its score.
REPLY_BYTES = 1 << 20


@dataclass(frozen=True)
class Start:
    """What is scored: `document` is any document of the task, from which lm-eval reads the names of the fields."""

    task_class: type
    config: Any
    document: dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """A document with the filtered responses to it, as lm-eval's `process_results` takes them."""

    document: dict[str, Any]
    responses: list[Any]
    limit_seconds: float


def from_file(file: str, name: str) -> Any:
    """A function or class of a task's own Python file, which no import finds."""
    if file not in sys.modules:
        spec = importlib.util.spec_from_file_location(file, file)
        if spec is None or spec.loader is None:
            raise ImportError(f"{file} is no Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[file] = module
        spec.loader.exec_module(module)
    found: Any = sys.modules[file]
    for part in name.split("."):
        found = getattr(found, part)
    return found


def main(isolated: bool) -> None:
    """Serve the parent until it closes the pipe. isolated: this process has namespaces of its own."""
    requests, scratch = sys.stdin.buffer, Path.cwd()
    # What libraries print while they load is no answer.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    if isolated:
        _mount("tmpfs", scratch)
        os.chdir(scratch)
    elif platform.system() == "Linux":
        # What an answer starts and leaves behind becomes this process's child, so that it can be found and ended.
        _libc().prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    start: Start = pickle.load(requests)  # noqa: S301 - from the parent
    task = _rebuild(start)
    replies.write('{"ready": true}\n')
    replies.flush()
    while True:
        try:
            answer: Answer = pickle.load(requests)  # noqa: S301 - from the parent
        except EOFError:
            return
        replies.write(json.dumps(_in_child(task, answer, scratch, isolated)) + "\n")
        replies.flush()


def try_out() -> None:
    """Do once what isolates answers. Raises OSError where the system does not let it be done."""
    scratch = Path.cwd()
    _mount("tmpfs", scratch)
    _protect_files(scratch)


def _rebuild(start: Start) -> Any:
    """The task with its metrics, over one document instead of its data set, which may lie on the hub."""
    import datasets

    class Scored(start.task_class):  # type: ignore[name-defined]
        CONFIG = start.config

        def download(self, *args: Any, **options: Any) -> None:
            splits = (self.config.training_split, self.config.validation_split, self.config.test_split)
            documents = datasets.Dataset.from_list([start.document])
            self.dataset = {split: documents for split in splits if split is not None}

    return Scored()


def _in_child(task: Any, answer: Answer, scratch: Path, isolated: bool) -> dict[str, Any]:
    """What the score of `answer` is: {"scores": ...}, or {"error": ...} of the metric, or {"stopped": why}."""
    import psutil

    inside = psutil.Process()
    memory_bytes = inside.memory_info().vms + MEMORY_BYTES
    others = sum(p.info["num_threads"] or 0 for p in psutil.process_iter(["uids", "num_threads"]) if _is_ours(p))
    folder = Path(tempfile.mkdtemp(dir=scratch))
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            # Nothing that this process holds open is the answer's, least of all the pipe to the parent.
            os.closerange(3, writing)
            os.closerange(writing + 1, os.sysconf("SC_OPEN_MAX"))
            try:
                if isolated:
                    _protect_files(scratch)
                _restrict(folder, answer.limit_seconds, memory_bytes, others + PROCESSES)
            except OSError as error:
                said = {"error": f"this process could not be restricted: {error}"}
            else:
                said = _said(task, answer)
            # One line, whatever a half-finished write before it left.
            os.write(writing, b"\n" + json.dumps(said).encode() + b"\n")
        finally:
            os._exit(0)
    os.close(writing)
    try:
        return _reply(child, reading, answer.limit_seconds)
    finally:
        os.close(reading)
        _end_all(child, isolated)
        shutil.rmtree(folder, ignore_errors=True)


def _said(task: Any, answer: Answer) -> dict[str, Any]:
    try:
        scores = task.process_results(answer.document, answer.responses)
        json.dumps(plain := {str(name): _plain(value) for name, value in scores.items()})
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:500]}
    return {"scores": plain}


def _plain(value: Any) -> Any:
    """Numbers of numpy and tuples as JSON has them."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 0) == 0 else value


def _reply(child: int, reading: int, limit_seconds: float) -> dict[str, Any]:
    """Wait for the line of `child`, for its end, or for the time to be up."""
    deadline = time.monotonic() + limit_seconds
    said, is_open, ended = b"", True, False
    while time.monotonic() < deadline:
        ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        if is_open and select.select([reading], [], [], 0 if ended else 0.05)[0]:
            part = os.read(reading, 65536)
            said += part
            if (line := _line(said)) is not None:
                return line
            is_open = bool(part) and len(said) <= REPLY_BYTES
        elif ended:
            break
        elif not is_open:
            time.sleep(0.05)
    return {"stopped": "ended the process that scored it" if ended else f"ran for {limit_seconds:g} s"}


def _line(said: bytes) -> dict[str, Any] | None:
    for line in said.split(b"\n")[:-1]:
        with contextlib.suppress(ValueError):
            found = json.loads(line)
            if isinstance(found, dict) and ("error" in found or isinstance(found.get("scores"), dict)):
                return found
    return None


def _restrict(folder: Path, seconds: float, memory_bytes: int, processes: int) -> None:
    """Take from this process what an answer needs not: input, output, environment, rights, time and room without end."""
    import resource  # Windows has none, and there the rest of this package works

    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    os.chdir(folder)
    os.environ.clear()
    os.environ["HF_ALLOW_CODE_EVAL"] = "1"  # the metric code_eval looks for it each time
    tempfile.tempdir = str(folder)
    for kind, most in (
        (resource.RLIMIT_CPU, int(seconds) + 1),
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_NOFILE, 256),
        (resource.RLIMIT_CORE, 0),
    ):
        # A lower limit that stands already is kept; one that this system does not know cannot be set.
        with contextlib.suppress(ValueError, OSError):
            hard = resource.getrlimit(kind)[1]
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(kind, (most, most))
    if platform.system() == "Linux":
        _libc().prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
        # In a user namespace below that of the mounts nobody may change those.
        _libc().unshare(_NEW_USER)


def _is_ours(process: Any) -> bool:
    uids = process.info["uids"]
    return uids is not None and uids.real == os.getuid()


def _end_all(child: int, isolated: bool) -> None:
    """Kill the answer's process and all that it started, and wait until they are gone."""
    import psutil

    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    while True:
        if isolated:
            # Everything but this process, which is the first one of its namespace.
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
        else:
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


# -- what the C library has and Python has not --


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


class _MountAttributes(ctypes.Structure):
    """`struct mount_attr` of mount_setattr(2)."""

    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns")]


_NEW_MOUNTS, _NEW_USER = 0x20000, 0x10000000
_READ_ONLY, _NO_SET_UID, _NO_DEVICES = 0x1, 0x2, 0x4
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")


def _protect_files(scratch: Path) -> None:
    """Make every file read-only but those below `scratch`, and no device usable that could change a disk.

    For this process and those below: with mounts of its own, on which the worker has nothing open for writing.
    """
    _checked(_libc().unshare(_NEW_MOUNTS), Path("/"))
    for device in _DEVICES:
        _mount("bind", Path(device))
    memory = [folder for folder in (Path("/dev/shm"),) if folder.is_dir()]  # where locks between processes lie
    for folder in memory:
        _mount("tmpfs", folder)
    _change_mount("/", _READ_ONLY | _NO_SET_UID | _NO_DEVICES, 0, recursive=True)
    for device in _DEVICES:
        _change_mount(device, 0, _NO_DEVICES)
    for folder in (scratch, *memory):
        _change_mount(str(folder), 0, _READ_ONLY)


def _mount(kind: str, place: Path) -> None:
    source, kind_bytes, flags = (b"tmpfs", b"tmpfs", 0) if kind == "tmpfs" else (os.fsencode(place), None, 4096)
    options = b"size=64m" if kind == "tmpfs" else None
    _checked(_libc().mount(source, os.fsencode(place), kind_bytes, flags, options), place)


def _change_mount(place: str, wanted: int, unwanted: int, recursive: bool = False) -> None:
    attributes = _MountAttributes(wanted, unwanted, 0, 0)
    number, here, below = 442, -100, 0x8000  # mount_setattr (the same on every architecture), AT_FDCWD, AT_RECURSIVE
    flags = below if recursive else 0
    size = ctypes.sizeof(attributes)
    _checked(_libc().syscall(number, here, os.fsencode(place), flags, ctypes.byref(attributes), size), Path(place))


def _checked(result: int, place: Path) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(place))
