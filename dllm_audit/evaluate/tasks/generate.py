"""Remake the data of the embedded tasks from seeds: python -m dllm_audit.evaluate.tasks.generate

Test problems and examples come from splits that the embedded models never train on
(`dllm_audit.models.tiny.problems.split_of`).
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import click

from dllm_audit.models.tiny import problems

PROBLEM_TESTS, PROBLEM_EXAMPLES = 500, 200
LIST_TESTS, LIST_EXAMPLES = 200, 20
EXAMPLE_SEED = problems.TEST_SEED + 1

T = TypeVar("T", bound=Hashable)


def data_files() -> dict[str, list[dict[str, Any]]]:
    """Return file name -> its records, in the order in which they are written."""
    files: dict[str, list[dict[str, Any]]] = {}
    for part, split, seed, problem_count, list_count in (
        ("test", "test", problems.TEST_SEED, PROBLEM_TESTS, LIST_TESTS),
        ("train", "fewshot", EXAMPLE_SEED, PROBLEM_EXAMPLES, LIST_EXAMPLES),
    ):
        found = islice(distinct(problems.word_problems(seed, split)), problem_count)
        files[f"gsm_mini_{part}.jsonl"] = [{"question": p.question, "answer": p.answer} for p in found]
        for kind in problems.LIST_KINDS:
            exercises = islice(distinct(problems.list_exercises(seed, split, kind)), list_count)
            files[f"lists_{kind}_{part}.jsonl"] = [
                {"kind": kind, "items": list(e.items), "new_item": e.new_item, "answer": e.answer} for e in exercises
            ]
    return files


def distinct(values: Iterable[T]) -> Iterator[T]:
    """Yield values that have not come before."""
    seen: set[T] = set()
    for value in values:
        if value not in seen:
            seen.add(value)
            yield value


@click.command(epilog="Example: python -m dllm_audit.evaluate.tasks.generate --out /tmp/data")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(__file__).parent / "data",
    help="Folder to write into. Default: the package's own.",
)
def main(out: Path) -> None:
    """Write the test problems and examples of the embedded tasks."""
    out.mkdir(parents=True, exist_ok=True)
    for name, records in data_files().items():
        lines = "".join(json.dumps(record) + "\n" for record in records)
        (out / name).write_text(lines, encoding="utf-8")
        click.echo(f"{name}: {len(records)} records", err=True)


if __name__ == "__main__":
    main()
