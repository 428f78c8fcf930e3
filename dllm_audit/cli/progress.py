"""Run a plan: load each model once, make run after run, and say on stderr how far it is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dllm_audit.analysis.plain import one_line
from dllm_audit.cli.auditing import audit_line
from dllm_audit.cli.opening import Choice, load
from dllm_audit.cli.terminal import warn
from dllm_audit.errors import AuditError, Interrupted, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dllm_audit.analysis.summary import RunSummary
    from dllm_audit.evaluate.execution import Cell, Conditions, Progress
    from dllm_audit.evaluate.sequential import AuditOutcome, AuditState
    from dllm_audit.measure.roofline import DeviceSpeed
    from dllm_audit.store.database import Store


def run_plan(
    plan: Sequence[Cell],
    conditions: Conditions,
    store: Store,
    live: bool,
    loaded: Loaded,
    beside_generate: bool = False,
) -> list[str]:
    """Make the runs of a plan in its order; returns their ids.

    conditions: those of `loaded`, or others made of them. live: redraw progress, for a terminal. loaded: the models.
    beside_generate: observe transformers beside autoregressive runs.
    Raises Interrupted after Ctrl-C, and what ends a run; what had finished is stored.
    """
    from dllm_audit.evaluate.execution import execute
    from dllm_audit.evaluate.library import LibraryObservations

    library = LibraryObservations() if beside_generate else None
    run_ids: list[str] = []
    ticker = _Ticker(live, len(plan))
    for cell in plan:
        model, seconds, speed = loaded.of(cell)
        ticker.next()
        with _told(ticker, store):
            run_ids.append(execute(cell, model, conditions, store, ticker.tell, seconds, ticker.say, speed, library))
    return run_ids


def run_until_decided(
    plan: Sequence[Cell],
    conditions: Conditions,
    store: Store,
    margin: float,
    live: bool,
    loaded: Loaded,
    beside_generate: bool,
) -> AuditOutcome:
    """Decode the two sides of one question in turns until it is decided, with a line for every part on stderr.

    Raises as `run_plan` does.
    """
    from dllm_audit.evaluate.library import LibraryObservations
    from dllm_audit.evaluate.sequential import Side, run_audit

    library = LibraryObservations() if beside_generate else None
    sides = [Side(cell, *loaded.of(cell)) for cell in plan]
    ticker = _Ticker(live, 1)
    ticker.next()

    def tell(state: AuditState) -> None:
        ticker.wipe()
        click.echo(audit_line(state), err=True)

    with _told(ticker, store):
        return run_audit(sides, conditions, store, margin, tell, ticker.tell, ticker.say, library)


class Loaded:
    """Loads each model once, measures each device once, and says what on this machine spoils times.

    conditions: those that were given, with what counts energy here; its idle power is measured beside the device's speed.
    roofline: measure the devices. without_text: prompts are ids, so that a model needs no tokenizer.
    """

    def __init__(self, conditions: Conditions, roofline: bool, without_text: bool = False) -> None:
        from dllm_audit.measure.energy import find_energy_source, with_idle_power
        from dllm_audit.measure.environment import describe, readings
        from dllm_audit.measure.hazards import timing_hazards
        from dllm_audit.models.loading import pick_device

        device = pick_device(conditions.device)
        for hazard in timing_hazards(readings(device) | describe(device)):
            warn(hazard)
        source = find_energy_source(device)
        self.conditions = replace(conditions, energy=with_idle_power(source) if roofline else source)
        self.roofline = roofline
        self.without_text = without_text
        self.models: dict[Path, tuple[Any, float]] = {}
        self.speeds: dict[tuple[Any, Any], DeviceSpeed | None] = {}

    def of(self, cell: Cell) -> tuple[Any, float, DeviceSpeed | None]:
        """(model of a cell, seconds that loading it took, what its device can do at most)."""
        conditions = self.conditions
        if cell.source.folder not in self.models:
            began = time.perf_counter()
            loaded = load(Choice(cell.backend, cell.source), conditions.device, conditions.dtype, conditions.engine)
            if loaded.tokenizer is None and not self.without_text:
                raise UsageError(
                    f"{cell.source.ref} has no tokenizer, and prompts are text. Put its tokenizer.json into the folder, "
                    "or give token ids to: dllm-audit generate --requests FILE.jsonl"
                )
            self.models[cell.source.folder] = (loaded, time.perf_counter() - began)
        model, seconds = self.models[cell.source.folder]
        kind = (model.device, model.dtype)
        if self.roofline and kind not in self.speeds:
            self.speeds[kind] = _device_speed(*kind)
        return model, seconds, self.speeds.get(kind)


@contextmanager
def _told(ticker: _Ticker, store: Store) -> Iterator[None]:
    """End the line of progress however a run ends, and say after Ctrl-C how it goes on."""
    try:
        yield
    except (Interrupted, KeyboardInterrupt):
        ticker.end()
        raise Interrupted(
            f"Interrupted. What had finished is kept in {store.path}; the same command with --resume goes on from there."
        ) from None
    except AuditError:
        ticker.end()
        raise
    ticker.end()


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

    def wipe(self) -> None:
        """Make room for a line of another kind."""
        if self.live and self.last is not None:
            click.echo("\r\033[K", nl=False, err=True)
        self.last = None

    def end(self) -> None:
        if self.last is not None:
            click.echo(("\r\033[K" if self.live else "") + self._line(self.last), err=True)
            self.last = None

    def _line(self, progress: Progress) -> str:
        from dllm_audit.analysis.labels import set_by_hand

        cell = progress.cell
        decoder = ", ".join([cell.backend.name, *set_by_hand(cell.given)])
        what = f"[{self.number}/{self.runs}] {decoder} on {cell.task_name}"
        what += f", template {one_line(cell.template.name, 60)}" if cell.template else ""
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
