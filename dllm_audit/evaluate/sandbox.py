"""Score answers whose scoring executes the code that a model wrote, in a subprocess that can do little harm.

Each answer is scored in a process of its own: empty environment, a fresh folder, limits on time, memory, size of files
and number of processes (root has no such number), ended with all that it started when its time is up. Where the system
has `unshare` and lets a user make namespaces (Linux mostly does, containers often do not), it moreover has no network,
sees no process of others, and can write no file but its own. The process that asks is untouched by whatever it does.

An answer that runs for ever, or ends the process that scores it, is wrong: it gets what its metric gives to a text that
is no program. A sandbox that does not start is a failure, and no score.

Not covered: a scorer that runs a program in its own process, instead of one below, lets a malicious program give itself
any score.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import pickle
import select
import shutil
import subprocess
import sys
import tempfile
import types
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dllm_audit.errors import AuditError
from dllm_audit.evaluate.sandbox_worker import Answer, Start, from_file

#: For each text to be executed: more than the 3 s per program and the four workers of the metric code_eval come to.
LIMIT_SECONDS = 20.0
#: Within so long the sandbox must be there; it imports lm-eval, which a busy machine takes its time for.
START_SECONDS = 180.0
#: What no compiler accepts, so that a metric says what a wrong answer gets.
NO_PROGRAM = "((("

_WORKER = "dllm_audit.evaluate.sandbox_worker"
_NAMESPACES = (
    "unshare", "--user", "--map-root-user", "--net", "--ipc", "--mount", "--mount-proc", "--pid", "--fork",
    "--kill-child",
)  # fmt: skip


@dataclass(frozen=True)
class Isolation:
    """What this system can keep from executed code. command: what a program is started with; empty without namespaces."""

    command: tuple[str, ...]
    missing: str = ""

    @property
    def words(self) -> str:
        """What the code can do, after "in a subprocess with limits on time, memory and files"."""
        if self.command:
            return "without network, that can write no file of yours"
        return f"but with your files and the network within its reach, since {self.missing}"


def isolation() -> Isolation:
    """What is possible here, tried out."""
    if shutil.which(_NAMESPACES[0]) is None:
        return Isolation((), "this system has no unshare")
    attempt = [*_NAMESPACES, sys.executable, "-I", "-c", f"from {_WORKER} import try_out; try_out()"]
    try:
        with tempfile.TemporaryDirectory(prefix="dllm-audit-sandbox-") as folder:
            subprocess.run(attempt, check=True, capture_output=True, text=True, timeout=30, cwd=folder)
    except subprocess.CalledProcessError as error:
        said = (error.stderr.strip().splitlines() or ["no reason given"])[-1]
        return Isolation((), f"namespaces are not permitted here ({said})")
    except (OSError, subprocess.TimeoutExpired) as error:
        return Isolation((), f"namespaces cannot be made here ({error})")
    return Isolation(_NAMESPACES)


class SandboxError(AuditError):
    """The sandbox does not work, or the metric in it: nothing is known of the answers."""


def contained(task: Any) -> AbstractContextManager[tuple[Any, Counter[str]]]:
    """`sandboxed` for a task whose scoring executes what the model wrote; any other task as it is."""
    return sandboxed(task) if getattr(task, "UNSAFE_CODE", False) else nullcontext((task, Counter()))


@contextmanager
def sandboxed(task: Any, limit_seconds: float = LIMIT_SECONDS) -> Iterator[tuple[Any, Counter[str]]]:
    """A copy of lm-eval's `task` that scores in a sandbox, and what stopped programs did, with their numbers.

    limit_seconds: for each text that is executed. Raises SandboxError when the sandbox does not start.
    """
    stopped: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="dllm-audit-sandbox-") as folder:
        worker = _Worker(task, Path(folder), limit_seconds)

        def process_results(document: dict[str, Any], responses: Sequence[Any]) -> dict[str, Any]:
            scores, why = worker.score(document, list(responses))
            if why:
                stopped[why] += 1
            return scores

        inside = copy.copy(task)
        inside.process_results = process_results
        try:
            worker.start()
            yield inside, stopped
        finally:
            worker.stop()


@dataclass
class _Worker:
    """The process that scores, started anew when an answer has ended it."""

    task: Any
    folder: Path
    limit_seconds: float
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def start(self) -> None:
        self.stop()
        within = isolation()
        scratch = Path(tempfile.mkdtemp(dir=self.folder))
        call = f"from {_WORKER} import main; main({bool(within.command)})"
        errors = self.folder / "errors.txt"
        with errors.open("wb") as stderr:
            self.process = subprocess.Popen(
                [*within.command, sys.executable, "-I", "-c", call],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                cwd=scratch,
                env=_environment(scratch),
                start_new_session=True,
            )
        try:
            self._send(_description(self.task))
            ready = self._receive(START_SECONDS)
        except _Gone:
            ready = {}
        if "ready" not in ready:
            said = errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise SandboxError(
                "The subprocess that executes the code of answers did not start"
                + (f" ({said[-1][:300]})." if said else f" within {START_SECONDS:g} s.")
                + " The answers are stored; --resume scores them."
            )

    def stop(self) -> None:
        if self.process is None:
            return
        # With namespaces its child is the first process of one, and takes all others of it along.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, 9)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()
        self.process = None

    def score(self, document: dict[str, Any], responses: list[Any]) -> tuple[dict[str, Any], str]:
        """(the scores of an answer, why it was stopped or an empty text)."""
        said = self._ask(document, responses)
        why = str(said.get("stopped", ""))
        if why:
            said = self._ask(document, [_no_program(response) for response in responses])
        if "scores" not in said:
            name = self.task.config.task
            problem = said.get("error") or f"what is no program {said.get('stopped')}"
            raise SandboxError(
                f"The answers of task {name!r} could not be scored: {problem}. "
                "They are stored; --resume scores them again."
            )
        return dict(said["scores"]), why

    def _ask(self, document: dict[str, Any], responses: list[Any]) -> Mapping[str, Any]:
        seconds = self.limit_seconds * max(1, sum(map(_texts, responses)))
        try:
            self._send(Answer(document, responses, seconds))
            # The worker keeps the time itself; the rest is for what it does around that.
            return self._receive(seconds + 60)
        except _Gone:
            self.start()
            return {"stopped": "ended the process that scored it"}

    def _send(self, what: Start | Answer) -> None:
        assert self.process is not None
        pipe = self.process.stdin
        assert pipe is not None
        try:
            pipe.write(_pickled(what))
            pipe.flush()
        except OSError as error:
            raise _Gone from error

    def _receive(self, seconds: float) -> Mapping[str, Any]:
        assert self.process is not None
        pipe = self.process.stdout
        assert pipe is not None
        if not select.select([pipe], [], [], seconds)[0]:
            raise _Gone
        try:
            return dict(json.loads(pipe.readline()))
        except ValueError as error:
            raise _Gone from error


class _Gone(Exception):
    """The worker has ended, or says nothing any more."""


def _environment(scratch: Path) -> dict[str, str]:
    """What the worker needs to find metrics that were loaded before. The code that it executes gets none of it."""
    hub = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
    kept = {name: os.environ[name] for name in ("HF_MODULES_CACHE", "LD_LIBRARY_PATH") if name in os.environ}
    return {
        **kept,
        "PATH": os.defpath,
        "LANG": "C.UTF-8",
        "HOME": str(scratch),
        "TMPDIR": str(scratch),
        "HF_HOME": str(hub),
        "HF_METRICS_CACHE": str(scratch / "metrics"),
        "HF_HUB_OFFLINE": "1",
        "HF_EVALUATE_OFFLINE": "1",
        "HF_ALLOW_CODE_EVAL": "1",
        "OMP_NUM_THREADS": "1",
        "TQDM_DISABLE": "1",
    }


def _description(task: Any) -> Start:
    """The parts of `task` that score, without its data, prompts and filters."""
    config = copy.copy(task.config)
    # Documents arrive as the task made them, and no prompt is rendered.
    for name in ("process_docs", "custom_dataset", "filter_list", "fewshot_split"):
        setattr(config, name, None)
    config.num_fewshot = 0
    config.fewshot_config = type(config.fewshot_config)()
    return Start(type(task), config, dict(task.eval_docs[0]))


class _Pickler(pickle.Pickler):
    """Pickles functions and classes of a task's own files by file and name."""

    def reducer_override(self, thing: Any) -> Any:
        if not isinstance(thing, types.FunctionType | type):
            return NotImplemented
        module = sys.modules.get(thing.__module__)
        # lm-eval marks the modules that it loads from beside a task's YAML file so.
        if module is None or not hasattr(module, "__mtime__"):
            return NotImplemented
        return from_file, (module.__file__, thing.__qualname__)


def _pickled(what: Start | Answer) -> bytes:
    into = io.BytesIO()
    try:
        _Pickler(into).dump(what)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise SandboxError(
            f"The task cannot be handed to the subprocess that executes the code of answers ({error}). "
            "Its functions must stand at the top of a Python file beside its YAML file."
        ) from error
    return into.getvalue()


def _no_program(response: Any) -> Any:
    if isinstance(response, list | tuple):
        return [_no_program(part) for part in response]
    return NO_PROGRAM if isinstance(response, str) else response


def _texts(response: Any) -> int:
    return sum(map(_texts, response)) if isinstance(response, list | tuple) else 1
