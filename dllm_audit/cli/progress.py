"""Run a plan: load each model once, make run after run, and say on stderr how far it is."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dllm_audit.analysis.plain import one_line
from dllm_audit.cli.opening import Choice, load
from dllm_audit.cli.terminal import warn
from dllm_audit.errors import AuditError, Interrupted, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dllm_audit.analysis.summary import RunSummary
    from dllm_audit.evaluate.execution import Cell, Conditions, Progress
    from dllm_audit.measure.roofline import DeviceSpeed
    from dllm_audit.store.database import Store


def run_plan(
    plan: Sequence[Cell],
    conditions: Conditions,
    store: Store,
    live: bool,
    roofline: bool,
    beside_generate: bool = False,
    without_text: bool = False,
) -> list[str]:
    """Make the runs of a plan in its order; returns their ids.

    live: redraw progress, for a terminal. roofline: measure the device first. beside_generate: observe transformers beside
    autoregressive runs. without_text: prompts are ids, so that a model needs no tokenizer.
    Raises Interrupted after Ctrl-C, and what ends a run; what had finished is stored.
    """
    from dllm_audit.evaluate.execution import execute
    from dllm_audit.evaluate.library import LibraryObservations
    from dllm_audit.measure.environment import describe, readings
    from dllm_audit.measure.hazards import timing_hazards
    from dllm_audit.models.loading import pick_device

    device = pick_device(conditions.device)
    for hazard in timing_hazards(readings(device) | describe(device)):
        warn(hazard)
    models: dict[Path, tuple[Any, float]] = {}
    speeds: dict[tuple[Any, Any], DeviceSpeed | None] = {}
    library = LibraryObservations() if beside_generate else None
    run_ids: list[str] = []
    ticker = _Ticker(live, len(plan))
    for cell in plan:
        if cell.source.folder not in models:
            began = time.perf_counter()
            loaded = load(Choice(cell.backend, cell.source), conditions.device, conditions.dtype, conditions.engine)
            if loaded.tokenizer is None and not without_text:
                raise UsageError(
                    f"{cell.source.ref} has no tokenizer, and prompts are text. Put its tokenizer.json into the folder, "
                    "or give token ids to: dllm-audit generate --requests FILE.jsonl"
                )
            models[cell.source.folder] = (loaded, time.perf_counter() - began)
        ticker.next()
        model, seconds = models[cell.source.folder]
        kind = (model.device, model.dtype)
        if roofline and kind not in speeds:
            speeds[kind] = _device_speed(*kind)
        try:
            run_ids.append(
                execute(cell, model, conditions, store, ticker.tell, seconds, ticker.say, speeds.get(kind), library)
            )
        except (Interrupted, KeyboardInterrupt):
            ticker.end()
            raise Interrupted(
                f"Interrupted. What had finished is kept in {store.path}; the same command with --resume goes on from there."
            ) from None
        except AuditError:
            ticker.end()
            raise
        ticker.end()
    return run_ids


def _device_speed(device: Any, dtype: Any) -> DeviceSpeed | None:
    """What the device can do at most, measured now; None with a warning where that cannot be."""
    from dllm_audit.measure.roofline_device import measure_device

    try:
        return measure_device(device, dtype, str(device))
    except AuditError as error:
        warn(f"{error} The runs of this command have no share of the bound.")
        return None


class _Ticker:
    """Progress on stderr: one line per run, redrawn between requests when stderr is a terminal."""

    def __init__(self, live: bool, runs: int) -> None:
        self.live = live
        self.runs = runs
        self.number = 0
        self.last: Progress | None = None
        self.drawn = 0.0

    def next(self) -> None:
        self.number += 1
        self.last = None

    def tell(self, progress: Progress) -> None:
        self.last = progress
        moment = time.perf_counter()
        if self.live and moment - self.drawn > 0.2:
            self.drawn = moment
            click.echo("\r\033[K" + self._line(progress), nl=False, err=True)

    def say(self, what: str) -> None:
        """What goes on after the last request: shown at the end of the line, in place of the time that is left."""
        if self.live and self.last is not None:
            click.echo("\r\033[K" + self._line(self.last) + f", {what} ...", nl=False, err=True)

    def end(self) -> None:
        if self.last is not None:
            click.echo(("\r\033[K" if self.live else "") + self._line(self.last), err=True)
            self.last = None

    def _line(self, progress: Progress) -> str:
        cell = progress.cell
        what = f"[{self.number}/{self.runs}] {cell.backend.name} on {cell.task_name}"
        what += f", {cell.load.words}" if cell.load.words else ""
        if cell.concurrency > 1:
            what += f", {cell.concurrency} in flight"
        if cell.role != "candidate":
            what += f" ({cell.role})"
        line = f"{what}: {progress.done}/{progress.planned} requests, {_clock(progress.seconds)}"
        left = progress.planned - progress.done
        if left and progress.seconds and progress.done:
            line += f", about {_clock(progress.seconds / progress.done * left)} left"
        return line + (f", {progress.failed} failed" if progress.failed else "")


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"


def say_failures(summaries: Sequence[RunSummary]) -> int:
    """How many requests failed; what that means, and why of a run in which none was answered, goes to stderr."""
    failed = sum(summary.failed for summary in summaries)
    reasons: dict[str, list[RunSummary]] = {}
    for summary in summaries:
        if summary.failures and not summary.answered:
            reasons.setdefault(summary.failures[0].message, []).append(summary)
    for message, runs in reasons.items():
        ids = ", ".join(summary.run_id for summary in runs)
        click.echo(f"No request of {one_line(ids, 400)} could be decoded: {one_line(message, 1000)}", err=True)
    if failed:
        click.echo(
            f"{failed} requests failed; they count as failures, not as wrong answers. See: dllm-audit show RUN",
            err=True,
        )
    return failed
