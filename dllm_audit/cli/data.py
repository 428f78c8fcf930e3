"""`dllm-audit data`: local data sets for tasks that would need the hub."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dllm_audit.analysis.plain import one_line
from dllm_audit.cli.options import json_option
from dllm_audit.cli.terminal import say, say_json

if TYPE_CHECKING:
    from dllm_audit.evaluate.datasets import ImportedData, ImportedFile


@click.group(epilog="Example: dllm-audit data list")
def command() -> None:
    """Import and list local data sets, so that tasks of the hub work without network."""


@command.command("import", epilog="Example: dllm-audit data import gsm8k test.jsonl --fewshot train.jsonl")
@click.argument("task")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--fewshot", type=click.Path(path_type=Path), help="Documents for the worked examples in the prompt.")
@json_option
def import_command(task: str, path: Path, fewshot: Path | None, as_json: bool) -> None:
    """Copy the data set of lm-eval task TASK from PATH (JSONL or Parquet), with its hash, into the data folder."""
    from dllm_audit.errors import TaskError, did_you_mean
    from dllm_audit.evaluate.datasets import import_data
    from dllm_audit.evaluate.loading import embedded_task_names, lm_eval_folder, task_names

    known = task_names(lm_eval_folder())
    if task in embedded_task_names():
        raise TaskError(f"Task {task!r} is embedded and has its data already.")
    if task not in known:
        raise TaskError(f"There is no task {task!r} in lm-eval. {did_you_mean(task, known)}")
    data = import_data(task, path, fewshot)
    if as_json:
        say_json(_facts(data), indent=2)
        return
    say(f"Imported {data.test.rows} documents for task {task} into {data.folder}.")
    if data.fewshot is not None:
        click.echo(f"With {data.fewshot.rows} documents for worked examples.")
    shown = " --num-fewshot 0" if data.fewshot is None else ""
    say(f"Now: dllm-audit run --backend dualcache --task {task}{shown} --limit 8")


@command.command("list", epilog="Example: dllm-audit data list --json")
@json_option
def list_command(as_json: bool) -> None:
    """List the imported data sets."""
    from dllm_audit.evaluate.datasets import data_folder, list_data

    found = list(list_data())
    if as_json:
        say_json([_facts(data) for data in found], indent=2)
        return
    if not found:
        say(f"No data set was imported into {data_folder()} yet. Embedded tasks need none.")
    for data in found:
        say(f"{one_line(data.task)}: {_file(data.test)}")
        if data.fewshot is not None:
            say(f"    worked examples: {_file(data.fewshot)}")


def _file(file: ImportedFile) -> str:
    return f"{file.rows} documents ({one_line(file.source)}, sha256 {file.sha256[:12]})"


def _facts(data: ImportedData) -> dict[str, Any]:
    facts = dataclasses.asdict(data)
    return {**facts, "folder": str(data.folder)}
