"""`dllm-audit`: the group of commands, and how errors become sentences and exit statuses."""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import os
import re
import signal
import sys
import traceback

import click

from dllm_audit import __version__
from dllm_audit.cli.terminal import complain, say
from dllm_audit.errors import AuditError, Interrupted, did_you_mean
from dllm_audit.plugins import plugin_of

#: Command -> module of this package; the module defines a click command called `command`.
COMMANDS = {
    "run": "run",
    "bench": "bench",
    "report": "report",
    "generate": "generate",
    "score": "score",
    "roofline": "roofline",
    "backends": "backends",
    "data": "data",
    "runs": "runs",
    "show": "show",
    "perplexity": "perplexity",
    "compare": "compare",
    "front": "front",
    "export": "export",
    "claims": "claims",
    "doctor": "doctor",
}

INTERRUPTED = 130
FAILED = 3
"""1 is kept for a check that failed."""


class _Commands(click.Group):
    """Commands are imported when asked for, so that `--help` stays fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        return importlib.import_module(f"dllm_audit.cli.{COMMANDS[name]}").command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            raise click.UsageError(f"There is no command {args[0]!r}. {did_you_mean(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: dllm-audit run --backend dualcache --task gsm_mini --limit 20 && dllm-audit report",
)
@click.version_option(__version__, prog_name="dllm-audit")
def cli() -> None:
    """Find out whether a diffusion language model is really faster: on your machine, at equal quality.

    `run` decodes lm-eval tasks with one or more backends while timing every request, `report` turns the results into
    one HTML file that also checks published claims.
    """


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. Never shows a traceback for a mistake of the person at it."""
    # The libraries draw bars of their own; progress is this program's to show. Read when tqdm is imported.
    os.environ.setdefault("TQDM_DISABLE", "1")
    for stream in (sys.stdout, sys.stderr):
        # A terminal that does not know a character shows its code.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        status = cli.main(args=arguments, prog_name="dllm-audit", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as leaving:
        status = leaving.exit_code
    except SystemExit as leaving:
        # click silences stdout after a broken pipe and leaves with 1, which here would mean that a check failed.
        if leaving.code != 1 or not type(sys.stdout).__name__.endswith("PacifyFlushWrapper"):
            raise
        # The reader (a pager, head) went away; what it did not want to read is no error.
        _close_stdout()
        status = 0
    except BaseException as problem:
        if isinstance(problem, (KeyboardInterrupt, click.Abort, Interrupted)) and arguments is None:
            # Impatient further Ctrl-C would hit the interpreter while it leaves, and that shows a traceback.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        status = _explain(problem)
    sys.exit(status if isinstance(status, int) else 0)


def _explain(problem: BaseException) -> int:
    """Say on stderr what ended the command, and give the exit status that belongs to it."""
    printing = isinstance(problem, OSError) and _was_printing(problem)
    if printing:
        # What is left in the buffer would fail once more at exit.
        _close_stdout()
    try:
        if isinstance(problem, (KeyboardInterrupt, click.Abort)):
            click.echo("Interrupted.", err=True)
            return INTERRUPTED
        if isinstance(problem, click.ClickException):
            said = io.StringIO()
            problem.show(said)
            say(said.getvalue().rstrip("\n"), err=True)
            return problem.exit_code
        if isinstance(problem, AuditError):
            complain(problem)
            return problem.exit_status
        sentence = _limit_of_the_machine(problem, printing)
        if sentence is None:
            say("".join(traceback.format_exception(problem)).rstrip("\n"), err=True)
            plugin = plugin_of(problem.__traceback__)
            sentence = (
                f"This is a bug of dllm-audit {__version__}, not a mistake of yours. "
                "Report it with the lines above and the command that you gave."
                if plugin is None
                else f"Plugin {plugin!r} failed. Report it, with the lines above, to whoever wrote it; what had finished is kept."
            )
        complain(sentence)
    except OSError:
        pass  # stderr cannot be written either: the exit status is all that is left
    return FAILED


def _limit_of_the_machine(problem: BaseException, printing: bool) -> str | None:
    """The sentence for what no program can help: no memory, no space, no permission. None for anything else."""
    text = str(problem)
    # By name and wording: the classes are those of torch and DuckDB, which take seconds to import.
    short = isinstance(problem, MemoryError) or type(problem).__name__ in ("OutOfMemoryError", "OutOfMemoryException")
    if short or (isinstance(problem, RuntimeError) and re.search(r"can't allocate memory|out of memory", text, re.I)):
        amount = re.search(r"tried to allocate ([\d.]+ ?[A-Za-z]+)", text, re.I)
        what = f"for another {amount[1]}" if amount else "for this"
        return (
            f"There is not enough memory {what}: lower --concurrency or --gen-length (of score: --batch-size), "
            "or use a smaller model."
        )
    if isinstance(problem, UnicodeEncodeError) and not problem.encoding.lower().startswith("utf"):
        what = problem.object[problem.start : problem.end]
        return (
            f"{what!r} cannot be written in {problem.encoding}, which this machine is set to use for text or names of "
            "files. Set PYTHONUTF8=1, or LANG to a UTF-8 locale such as C.UTF-8."
        )
    if not isinstance(problem, OSError) or (not printing and problem.errno not in _OF_THE_MACHINE):
        return None
    what = "The output" if printing or problem.filename is None else str(problem.filename)
    return f"{what} cannot be read or written: {problem.strerror}."


#: Errors of the operating system that are about the machine and not about this program.
_OF_THE_MACHINE = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EMFILE,
    errno.ENFILE,
)


def _was_printing(problem: OSError) -> bool:
    frames = [frame.f_code for frame, _ in traceback.walk_tb(problem.__traceback__)]
    return click.echo.__code__ in frames or frames == [main.__code__]


def _close_stdout() -> None:
    """Let whatever is still to be written to stdout go nowhere."""
    # Under a test runner stdout is no file.
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
