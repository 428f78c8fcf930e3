"""Plan runs and execute them: decode, time, store each request as it ends, score, trace."""

from __future__ import annotations

import hashlib
import json
import secrets
import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dllm_audit import __version__
from dllm_audit.backend import Backend
from dllm_audit.decode.tally import shapes_since
from dllm_audit.errors import Interrupted
from dllm_audit.evaluate.bench import SpeedWork
from dllm_audit.evaluate.library import LibraryObservations, is_comparable
from dllm_audit.evaluate.prompts import TaskItem, chat_template_of
from dllm_audit.evaluate.scoring import score
from dllm_audit.evaluate.work import Decoding, Scoring, stored_beside, work_of
from dllm_audit.measure.books import close_books
from dllm_audit.measure.environment import code_commit, describe, file_sha256
from dllm_audit.measure.load import CLOSED, Load
from dllm_audit.measure.steady import warm_up
from dllm_audit.models.loading import LoadedModel, ModelSource, weight_files
from dllm_audit.records import EngineLog, Failure, ForwardShape, Generation, ScoredAnswer
from dllm_audit.settings import Resolution
from dllm_audit.store.database import Store

if TYPE_CHECKING:
    from dllm_audit.measure.roofline import DeviceSpeed

#: Warm-up runs as many requests as will be in flight, but at most so many.
WARM_UP_REQUESTS = 32


@dataclass(frozen=True)
class Cell:
    """One run to make: a backend with a model and settings, on one task, at one concurrency.

    task: lm-eval's, or a `SpeedWork`. given: the settings as typed. concurrency: requests in flight at most.
    role: candidate, baseline, or control (the baseline once more, for the A/A check). load: when requests arrive.
    """

    backend: Backend
    source: ModelSource
    task_name: str
    task: Any
    given: Mapping[str, Any]
    concurrency: int
    repeat: int
    role: str = "candidate"
    load: Load = CLOSED


@dataclass(frozen=True)
class Conditions:
    """What all runs of one command share."""

    command: str
    device: str = "auto"
    dtype: str = "auto"
    engine: str = "eager"
    seed: int = 0
    limit: int | None = None
    num_fewshot: int | None = None
    chat_template: str = "auto"
    trace: int = 8
    resume: bool = False
    allow_code: bool = False
    invocation: str = field(default_factory=lambda: secrets.token_hex(4))


@dataclass(frozen=True)
class Progress:
    """Where a run stands; told after every request, outside the timed region."""

    cell: Cell
    done: int
    planned: int
    failed: int
    seconds: float


def balanced_order(cells_by_repeat: Sequence[Sequence[Cell]]) -> list[Cell]:
    """A B C, then C B A, and so on: a drift of the machine's clocks meets every run alike."""
    return [
        cell
        for number, cells in enumerate(cells_by_repeat)
        for cell in (cells if number % 2 == 0 else list(reversed(cells)))
    ]


def execute(
    cell: Cell,
    model: LoadedModel,
    conditions: Conditions,
    store: Store,
    tell: Callable[[Progress], None],
    load_seconds: float,
    say: Callable[[str], None] = lambda what: None,
    speed: DeviceSpeed | None = None,
    library: LibraryObservations | None = None,
) -> str:
    """Make one run and return its id. Whatever ends it early, the requests that had finished are stored.

    say: told what goes on after the last request, which may take a while.
    speed: what the device can do at most, for the run's share of the bound; None: the run has none.
    library: observes transformers beside an autoregressive run; None: nothing is.
    Raises Interrupted after Ctrl-C. With `conditions.resume`, goes on with the newest unfinished run of the same content.
    """
    chat = chat_template_of(model.tokenizer, conditions.chat_template, cell.source.ref)
    work = work_of(cell.backend, cell.task, cell.given, model, conditions.seed, chat, conditions.limit)
    # All at once are no more than there are.
    cell = replace(cell, concurrency=min(cell.concurrency, len(work.items))) if cell.load.kind == "offline" else cell
    resolution = work.resolution
    identity = _identity(cell, model, conditions, chat, work.items, resolution)
    content_key = _digest(json.dumps(identity, sort_keys=True))

    earlier = store.unfinished(content_key) if conditions.resume else None
    stored = {row["ordinal"] for row in store.answered(earlier["run_id"])} if earlier is not None else set()
    pending = [item for item in work.items if item.ordinal not in stored]
    if earlier is not None and not pending:
        # Nothing is decoded again, but the answers are scored by what the task says now, and missing traces are made.
        run_id = str(earlier["run_id"])
        notes = _score(cell, conditions, work, store, run_id)
        if notes:
            store.set_manifest(
                run_id, {**earlier["manifest"], "notes": [*earlier["manifest"].get("notes", []), *notes]}
            )
        _trace(work, store, run_id, conditions.trace)
        store.end_run(run_id, "complete")
        return run_id
    warmed = _warm_up(work, pending, cell.concurrency)
    manifest: dict[str, Any] = {
        "dllm_audit": __version__,
        "code_commit": code_commit(),
        "command": conditions.command,
        "load_seconds": load_seconds,
        "environment": describe(model.device),
        "warm_up": warmed,
        "waivers": list(cell.backend.waivers),
        "notes": [],
        **{name: identity[name] for name in ("model", "engine", "prompts", "seed")},
        **_roofline(model, speed),
    }
    if earlier is not None:
        run_id = str(earlier["run_id"])
        sitting = store.resume_run(run_id)
        first = earlier["manifest"]
        again = {name: manifest[name] for name in ("environment", "warm_up", "load_seconds")}
        manifest = {**first, "resumed_with": [*first.get("resumed_with", []), again]}
        store.set_manifest(run_id, manifest)
    else:
        run_id = f"{cell.backend.name}-{cell.task_name}-{secrets.token_hex(4)}"
        sitting = 1
        store.begin_run(
            {
                "run_id": run_id,
                "invocation": conditions.invocation,
                "content_key": content_key,
                "backend": cell.backend.name,
                "provenance": cell.backend.provenance,
                "kind": cell.backend.kind,
                "fidelity": resolution.settings.compat or "paper",
                "model": cell.source.ref,
                "task": cell.task_name,
                "output_type": cell.task.OUTPUT_TYPE,
                "role": cell.role,
                "concurrency": cell.concurrency,
                "load": cell.load.kind,
                "arrival_rate": cell.load.arrival_rate,
                "repeat": cell.repeat,
                "settings": resolution.as_dict(),
                "setting_sources": dict(resolution.sources),
                "manifest": manifest,
                "planned_requests": len(work.items),
            }
        )
    arrivals = cell.load.arrivals([item.ordinal for item in pending], conditions.seed)
    try:
        log, wall = _execute(cell, work, pending, arrivals, store, run_id, sitting, tell)
        spent = {
            "warm_up": sum(warmed["seconds"]),
            "preparing": wall - log.makespan_seconds,
            "storing": log.store_seconds,
        }
        with _timed(spent, "scoring"):
            manifest["notes"] += [*log.notes, *_score(cell, conditions, work, store, run_id)]
        say("measuring what its forwards cost")
        with _timed(spent, "books"):
            # Guidance runs two halves in one forward, which the separate measurement does not do.
            books = None if resolution.settings.cfg_scale else close_books(log, wall, work.session.forward_costs)
        if books is not None:
            manifest["books"] = {**books.as_dict(), "sitting": sitting}
        if conditions.trace and isinstance(work, Decoding):
            say("tracing its first requests")
        with _timed(spent, "tracing"):
            manifest["notes"] += _trace(work, store, run_id, conditions.trace)
        if library and "library" not in manifest and isinstance(work, Decoding) and is_comparable(cell):
            say("holding it against transformers' generate")
            with _timed(spent, "library"):
                manifest["library"] = library.beside(cell, work, model)
        manifest["outside_seconds"] = {**spent, "sitting": sitting}
        store.set_manifest(run_id, manifest)
    except Interrupted as stop:
        with _uninterrupted():
            if stop.log is not None and stop.log.notes:
                store.set_manifest(run_id, {**manifest, "notes": [*manifest["notes"], *stop.log.notes]})
            store.end_run(run_id, "interrupted")
        raise
    except BaseException as error:
        with _uninterrupted():
            store.end_run(run_id, "interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
        raise
    failed = any(row["error_type"] for row in store.requests(run_id))
    store.end_run(run_id, "failed" if failed else "complete")
    return run_id


def _roofline(model: LoadedModel, speed: DeviceSpeed | None) -> dict[str, Any]:
    """What the bound of a forward follows from, for the manifest; nothing where it is not known."""
    dimensions = None if speed is None else model.dimensions
    if speed is None or dimensions is None:
        return {}
    each = model.dtype.itemsize
    return {"roofline": {"dimensions": dimensions.as_dict(), "bytes_per_weight": each, "device": speed.as_dict()}}


#: Files that decide which ids a text becomes, and how prompts are dressed.
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _identity(
    cell: Cell,
    model: LoadedModel,
    conditions: Conditions,
    chat: bool,
    items: Sequence[TaskItem],
    resolution: Resolution,
) -> dict[str, Any]:
    """Everything that makes a run the same run: what it decodes, with what, how. No times, no paths."""
    files = weight_files(cell.source.folder, cell.source.ref)
    digests = {path.name: file_sha256(path) for path in files}
    keys = _digest("\n".join(item.key for item in items))
    return {
        "backend": cell.backend.name,
        "provenance": cell.backend.provenance,
        "task": cell.task_name,
        "role": cell.role,
        "concurrency": cell.concurrency,
        "repeat": cell.repeat,
        "settings": resolution.as_dict(),
        "seed": conditions.seed,
        "model": {
            "ref": cell.source.ref,
            "provenance": cell.source.provenance,
            "revision": cell.source.revision,
            "family": model.traits.family,
            "attention": model.traits.attention,
            "parameters": model.parameters,
            "weight_bytes": model.weight_bytes,
            "dtype": str(model.dtype).removeprefix("torch."),
            "weights_sha256": digests,
            "config_sha256": _digest(json.dumps(cell.source.family.translate(cell.source.fields), sort_keys=True)),
            "tokenizer_sha256": {
                path.name: file_sha256(path)
                for path in sorted(cell.source.folder.glob("*"))
                if path.name in _TOKENIZER_FILES and path.is_file()
            },
        },
        "engine": {
            "mode": conditions.engine,
            "attention_kernel": "sdpa",
            **({"expert_kernel": model.expert_kernel} if model.expert_kernel else {}),
            "device": str(model.device),
        },
        "prompts": {
            **_prompt_facts(cell, conditions, chat),
            "documents": len({item.doc_id for item in items}),
            "prompts_sha256": keys,
        },
        # A closed loop has no facts of its own, so that runs of before loads were told apart can be gone on with.
        **({} if cell.load == CLOSED else {"load": cell.load.as_dict()}),
    }


def _prompt_facts(cell: Cell, conditions: Conditions, chat: bool) -> dict[str, Any]:
    if isinstance(cell.task, SpeedWork):
        return {"speed_alone": cell.task.facts(), "chat_template": False}
    return {
        "num_fewshot": cell.task.config.num_fewshot or 0,
        "chat_template": chat,
        "limit": conditions.limit,
    }


def _warm_up(work: Decoding | Scoring, pending: Sequence[TaskItem], concurrency: int) -> dict[str, Any]:
    """Run the first requests until their time is stationary; none of it is counted."""
    items = pending[: min(concurrency, WARM_UP_REQUESTS)]
    what = f"first {len(items)} request{'s' if len(items) > 1 else ''}"
    return warm_up(lambda: work.warm_up(items, concurrency), what).as_dict()


def _execute(
    cell: Cell,
    work: Decoding | Scoring,
    pending: Sequence[TaskItem],
    arrivals: Sequence[float] | None,
    store: Store,
    run_id: str,
    sitting: int,
    tell: Callable[[Progress], None],
) -> tuple[EngineLog, float]:
    """Run what is pending. Returns the engine's log and the wall seconds by an outside clock, storing left out."""
    planned = len(work.items)
    done, failed, outside = planned - len(pending), 0, 0.0
    shapes: Sequence[ForwardShape] = ()
    unstored: Sequence[ForwardShape] = ()
    began = time.perf_counter()
    tell(Progress(cell, done, planned, failed, 0.0))

    def note(so_far: Sequence[ForwardShape]) -> None:
        nonlocal shapes, unstored, outside
        noted = time.perf_counter()
        shapes, unstored = so_far, shapes_since(so_far, shapes)
        outside += time.perf_counter() - noted

    def keep(result: Generation | ScoredAnswer | Failure) -> None:
        nonlocal done, failed, outside, unstored
        handed_over = time.perf_counter()
        item = work.items[int(result.id)]
        with _uninterrupted():
            store.add_result(
                run_id,
                item.ordinal,
                sitting,
                item.key,
                item.doc_id,
                item.prompt,
                item.prompt_sha256,
                result,
                *stored_beside(item),
                unstored,
            )
            unstored = ()
        done += 1
        failed += isinstance(result, Failure)
        tell(Progress(cell, done, planned, failed, time.perf_counter() - began))
        outside += time.perf_counter() - handed_over

    try:
        started = time.perf_counter()
        log = work.run(pending, keep, cell.concurrency, note, arrivals)
        wall = time.perf_counter() - started - outside
    except Interrupted as stop:
        if stop.log is not None:
            with _uninterrupted():
                store.add_log(run_id, sitting, stop.log)
        raise
    store.add_log(run_id, sitting, log)
    return log, wall


def _score(cell: Cell, conditions: Conditions, work: Decoding | Scoring, store: Store, run_id: str) -> list[str]:
    if isinstance(cell.task, SpeedWork):
        return []
    found = {row["ordinal"]: work.answer(row) for row in store.answered(run_id)}
    scores = score(cell.task_name, cell.task, work.items, found, unsafe=conditions.allow_code)
    store.add_scores(run_id, scores.answers, scores.metrics)
    return scores.notes


def _trace(work: Decoding | Scoring, store: Store, run_id: str, number: int) -> list[str]:
    """Decode the first requests once more with a step trace, after the timed region, where they have none yet.

    Returns a note for each that came out differently: the same settings should give the same tokens. What is only scored
    takes no steps.
    """
    if isinstance(work, Scoring):
        return []
    answered = {row["ordinal"]: list(row["output_ids"]) for row in store.answered(run_id)}
    traced = store.traced(run_id)
    chosen = [prompt for prompt in work.items if prompt.ordinal in answered][:number]
    notes: list[str] = []

    def keep(result: Generation | Failure) -> None:
        if isinstance(result, Generation) and list(result.output_ids) == answered[int(result.id)]:
            store.add_trace(run_id, int(result.id), result)
        else:
            notes.append(f"Request {result.id} came out differently when it was decoded again for its trace.")

    work.session.generate([p.request(work.given) for p in chosen if p.ordinal not in traced], keep, 1, traced=True)
    return notes


@contextmanager
def _timed(spent: dict[str, float], stage: str) -> Iterator[None]:
    """Note in `spent` the seconds that a stage outside the timed region took."""
    began = time.perf_counter()
    yield
    spent[stage] = time.perf_counter() - began


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C back for the moment that a result takes to be stored, then let it through."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[Any] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt


def shown_command(arguments: Sequence[str]) -> str:
    """The command line as typed, with folders reduced to their names so that a stored command names no machine."""
    return shlex.join(Path(a).name if "/" in a and Path(a).exists() else a for a in arguments)
