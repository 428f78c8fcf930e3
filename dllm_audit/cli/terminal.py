"""What commands print: facts as JSON that every reader takes, and sentences in which no foreign text acts.

File names, prompts, answers, claims, task names and what plugins say come from anybody. `say`, `warn` and `complain` are
how such text reaches a terminal; where it stands in a line of a table or a list, it goes through `one_line` first.
"""

from __future__ import annotations

import json
from math import isfinite
from typing import Any

import click

from dllm_audit.analysis.plain import one_line, visible

LONGEST_WARNING = 2000


def say(text: str, err: bool = False) -> None:
    """Print `text`; control and bidirectional characters in it show as their codes, line ends and tabs stay."""
    click.echo(visible(text), err=err)


def warn(problem: object) -> None:
    """Print a warning on stderr, on one line whatever is in it."""
    click.echo(f"Warning: {one_line(str(problem), LONGEST_WARNING)}", err=True)


def complain(problem: object) -> None:
    """Print what went wrong on stderr. Further lines are indented, so that none passes for a message of its own."""
    say("Error: " + str(problem).replace("\n", "\n  "), err=True)


def say_json(facts: Any, indent: int | None = None) -> None:
    """Print `facts` as JSON. It knows no NaN and no Infinity: such a number is null."""
    try:
        text = json.dumps(facts, indent=indent, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(facts), indent=indent, allow_nan=False)
    click.echo(text)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not isfinite(value) else value
