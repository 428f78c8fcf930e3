"""The commands that make the runs of a report again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any


def commands(runs: Sequence[Mapping[str, Any]], database: str) -> tuple[str, ...]:
    """The command of each run, every one once, as it is given in the folder of the results file `database`."""
    found = (run["manifest"].get("command") or run["invocation"] for run in runs)
    return tuple(dict.fromkeys(_again(str(command), database) for command in found if command))


def _again(command: str, database: str) -> str:
    """A command as it is given from the folder of the results: into that file, from the start."""
    try:
        words = shlex.split(command)
    except ValueError:
        return command
    if words[:2] != ["dllm-audit", "run"]:
        return command
    kept: list[str] = []
    for n, word in enumerate(words):
        after_db = n > 0 and words[n - 1] == "--db"
        if not after_db and word not in ("--db", "--resume") and not word.startswith("--db="):
            kept.append(word)
    return shlex.join([*kept, "--db", database])
