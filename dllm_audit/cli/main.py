"""`dllm-audit`: the group of commands, and how errors become sentences and exit statuses."""

from __future__ import annotations

import importlib
import os
import sys

import click

from dllm_audit import __version__
from dllm_audit.errors import AuditError, did_you_mean

#: Command -> module of this package; the module defines a click command called `command`.
COMMANDS = {
    "run": "run",
    "report": "report",
    "generate": "generate",
    "score": "score",
    "backends": "backends",
    "data": "data",
    "runs": "runs",
    "show": "show",
    "compare": "compare",
    "export": "export",
    "claims": "claims",
    "doctor": "doctor",
}

INTERRUPTED = 130


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
    try:
        status = cli.main(args=arguments, prog_name="dllm-audit", standalone_mode=False)
    except click.Abort:
        click.echo("Interrupted.", err=True)
        status = INTERRUPTED
    except click.exceptions.Exit as leaving:
        status = leaving.exit_code
    except click.ClickException as problem:
        problem.show()
        status = problem.exit_code
    except AuditError as problem:
        click.echo(f"Error: {problem}", err=True)
        status = problem.exit_status
    except KeyboardInterrupt:
        click.echo("Interrupted.", err=True)
        status = INTERRUPTED
    except SystemExit as leaving:
        # click silences stdout after a broken pipe and leaves with 1, which here would mean that a check failed.
        if leaving.code != 1 or not type(sys.stdout).__name__.endswith("PacifyFlushWrapper"):
            raise
        # The reader (a pager, head) went away; what it did not want to read is no error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    sys.exit(status if isinstance(status, int) else 0)
