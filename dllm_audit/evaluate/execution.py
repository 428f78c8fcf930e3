"""Plan runs and execute them: decode, time, store each request as it ends, score, trace."""

from __future__ import annotations

import hashlib
import json
import os
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
from dllm_audit.decode.tally import join_logs, shapes_since
from dllm_audit.errors import Interrupted, SettingError
from dllm_audit.evaluate.bench import SpeedWork
from dllm_audit.evaluate.library import LibraryObservations, is_comparable
from dllm_audit.evaluate.prompts import TaskItem, chat_template_of, first_item
from dllm_audit.evaluate.scoring import score
from dllm_audit.evaluate.work import Decoding, Scoring, check_work, stored_beside, work_of
from dllm_audit.measure.books import Books, close_books, own_clock_books
from dllm_audit.measure.energy import EnergySource, find_energy_source
from dllm_audit.measure.environment import at, code_commit, describe, file_sha256, readings
from dllm_audit.measure.load import CLOSED, Load
from dllm_audit.measure.steady import warm_up
from dllm_audit.measure.usage import UsageMeter
from dllm_audit.models.loading import LoadedModel, ModelSource, weight_files
from dllm_audit.records import EngineLog, Failure, ForwardShape, Generation, ScoredAnswer
from dllm_audit.settings import Resolution
from dllm_audit.store.database import Store

if TYPE_CHECKING:
    from dllm_audit.evaluate.parts import Part
    from dllm_audit.evaluate.templates import Template
    from dllm_audit.measure.roofline import DeviceSpeed

#: Warm-up runs as many requests as will be in flight, but at most so many.
WARM_UP_REQUESTS = 32


@dataclass(frozen=True)
class Cell:
    """One run to make: a backend with a model and settings, on one task, at one concurrency.

    task: lm-eval's, or a `SpeedWork`. given: the settings as typed. concurrency: requests in flight at most.
    role: candidate, baseline, or control (the baseline once more, for the A/A check). load: when requests arrive.
    factorial: of a factorial, which of its factors are on. template: how `task` words its prompts, where that is compared.
    part: the documents that count, where a setting is chosen on some of them; choice: how its settings were chosen then.
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
    factorial: Mapping[str, bool] = field(default_factory=dict)
    template: Template | None = None
    part: Part | None = None
    choice: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Conditions:
    """What all runs of one command share. energy: what counts joules, with the idle power; None: without it.

    code_commit: of the code as it was loaded, whatever is committed while the command runs; None where there is none.
    """

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
    energy: EnergySource | None = None
    invocation: str = field(default_factory=lambda: secrets.token_hex(4))
    code_commit: str | None = field(default_factory=code_commit)


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


def check_plan(plan: Sequence[Cell]) -> None:
    """Raise UsageError for the first cell of which every request would fail, as far as that shows before a model is loaded.

    So does a task that cannot be rendered.
    """
    first: dict[int, Any] = {}
    for cell in plan:
        if id(cell.task) not in first:
            first[id(cell.task)] = None if isinstance(cell.task, SpeedWork) else first_item(cell.task)
        try:
            check_work(cell.backend, cell.source.traits, cell.given, cell.task, first[id(cell.task)])
        except SettingError as error:
            if len({other.backend.name for other in plan}) == 1:
                raise
            raise SettingError(f"{cell.backend.name}: {error}") from error


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
    plan = plan_run(cell, model, conditions)
    earlier = plan.earlier(store)
    pending = plan.pending(store, earlier)
    if earlier is not None and not pending:
        return revisit(plan, store, earlier)
    run = begin(plan, store, pending, earlier, load_seconds, speed)
    with run.kept():
        run.decode(pending, tell, plan.cell.load.arrivals([item.ordinal for item in pending], conditions.seed))
        run.finish(say, library)
    return run.run_id


@dataclass(frozen=True)
class RunPlan:
    """A run before it begins: what it decodes, and what makes it the same run as another.

    identity: everything that does, without times and paths.
    """

    cell: Cell
    model: LoadedModel
    conditions: Conditions
    work: Decoding | Scoring
    identity: Mapping[str, Any]

    @property
    def content_key(self) -> str:
        """Address of the run by content."""
        return _digest(json.dumps(self.identity, sort_keys=True))

    def earlier(self, store: Store) -> dict[str, Any] | None:
        """The run that is gone on with; None where a new one begins."""
        return store.unfinished(self.content_key) if self.conditions.resume else None

    def pending(self, store: Store, earlier: Mapping[str, Any] | None) -> list[Any]:
        """What of the work `earlier` has not answered yet."""
        stored = set() if earlier is None else {row["ordinal"] for row in store.answered(earlier["run_id"])}
        return [item for item in self.work.items if item.ordinal not in stored]


def plan_run(cell: Cell, model: LoadedModel, conditions: Conditions) -> RunPlan:
    """Render what a cell decodes, and say what makes it what it is."""
    chat = chat_template_of(model.tokenizer, conditions.chat_template, cell.source.ref)
    work = work_of(cell.backend, cell.task, cell.given, model, conditions.seed, chat, conditions.limit)
    if cell.part is not None:
        work = replace(work, items=cell.part.of(work.items, conditions.seed))  # type: ignore[arg-type]
    # All at once are no more than there are.
    cell = replace(cell, concurrency=min(cell.concurrency, len(work.items))) if cell.load.kind == "offline" else cell
    return RunPlan(cell, model, conditions, work, _identity(cell, model, conditions, chat, work.items, work.resolution))


def revisit(plan: RunPlan, store: Store, earlier: Mapping[str, Any]) -> str:
    """Take up a run of which nothing is left to decode: scored by what the task says now, its missing traces made."""
    run_id = str(earlier["run_id"])
    notes = _score(plan, store, run_id)
    if notes:
        store.set_manifest(run_id, {**earlier["manifest"], "notes": [*earlier["manifest"].get("notes", []), *notes]})
    _trace(plan.work, store, run_id, plan.conditions.trace)
    store.end_run(run_id, "complete")
    return run_id


def begin(
    plan: RunPlan,
    store: Store,
    pending: Sequence[Any],
    earlier: Mapping[str, Any] | None,
    load_seconds: float,
    speed: DeviceSpeed | None = None,
) -> OpenRun:
    """Warm up with the first of `pending`, then store that the run has begun, or that `earlier` goes on."""
    cell, model, identity = plan.cell, plan.model, plan.identity
    warmed = _warm_up(plan.work, pending, cell.concurrency)
    manifest: dict[str, Any] = {
        "dllm_audit": __version__,
        "code_commit": plan.conditions.code_commit,
        "command": plan.conditions.command,
        "load_seconds": load_seconds,
        "environment": describe(model.device) | at("before", readings(model.device)),
        "warm_up": warmed,
        "waivers": list(cell.backend.waivers),
        "notes": [],
        **{name: identity[name] for name in _SHOWN_OF_IDENTITY if name in identity},
        **_roofline(model, speed),
        **({"factorial": dict(cell.factorial)} if cell.factorial else {}),
        **({"choice": dict(cell.choice)} if cell.choice else {}),
    }
    if earlier is not None:
        run_id = str(earlier["run_id"])
        sitting = store.resume_run(run_id)
        first = earlier["manifest"]
        again = {
            name: manifest[name] for name in ("dllm_audit", "code_commit", "environment", "warm_up", "load_seconds")
        }
        manifest = {**first, "resumed_with": [*first.get("resumed_with", []), again]}
        store.set_manifest(run_id, manifest)
    else:
        run_id = f"{cell.backend.name}-{cell.task_name}-{secrets.token_hex(4)}"
        sitting = 1
        store.begin_run(
            {
                "run_id": run_id,
                "invocation": plan.conditions.invocation,
                "content_key": plan.content_key,
                "backend": cell.backend.name,
                "provenance": cell.backend.provenance,
                "kind": cell.backend.kind,
                "fidelity": plan.work.resolution.settings.compat or "paper",
                "model": cell.source.ref,
                "task": cell.task_name,
                "output_type": cell.task.OUTPUT_TYPE,
                "role": cell.role,
                "concurrency": cell.concurrency,
                "load": cell.load.kind,
                "arrival_rate": cell.load.arrival_rate,
                "repeat": cell.repeat,
                "settings": plan.work.resolution.as_dict(),
                "setting_sources": dict(plan.work.resolution.sources),
                "manifest": manifest,
                "planned_requests": len(plan.work.items),
            }
        )
    done = len(plan.work.items) - len(pending)
    usage = UsageMeter(model.device, plan.conditions.energy or find_energy_source(model.device))
    return OpenRun(plan, store, run_id, sitting, manifest, done, {"warm_up": sum(warmed["seconds"])}, usage)


@dataclass
class OpenRun:
    """A run that has begun: decode what is left, at once or in parts, then `finish`, all inside `kept`.

    What lies between two parts belongs to nobody: no clock runs. manifest: what is known of the run so far.
    done, failed: of all its requests. spent: seconds of what is outside the timed region. usage: memory and energy of the parts.
    logs, wall_seconds: of the parts. As the engine says: engine_seconds, the same until the last answer, and request_seconds,
    those of all answers added up.
    """

    plan: RunPlan
    store: Store
    run_id: str
    sitting: int
    manifest: dict[str, Any]
    done: int
    spent: dict[str, float]
    usage: UsageMeter
    failed: int = 0
    logs: list[EngineLog] = field(default_factory=list)
    wall_seconds: float = 0.0
    engine_seconds: float = 0.0
    request_seconds: float = 0.0
    has_ended: bool = False

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Whatever ends the block before the run has ended: what the engine did is stored, and that the run ended so."""
        try:
            yield
        except BaseException as error:
            if not self.has_ended:
                with _uninterrupted():
                    self._keep_log("interrupted" if isinstance(error, Interrupted | KeyboardInterrupt) else "failed")
            raise

    def _keep_log(self, status: str) -> None:
        self._note_usage()
        self.store.set_manifest(self.run_id, self.manifest)
        if self.logs:
            log = join_logs(self.logs)
            self.store.add_log(self.run_id, self.sitting, log)
            if log.notes:
                notes = [*self.manifest["notes"], *log.notes]
                self.store.set_manifest(self.run_id, {**self.manifest, "notes": list(dict.fromkeys(notes))})
        self.store.end_run(self.run_id, status)

    def _note_usage(self) -> None:
        """Add what this sitting used, and how the machine is now, to the manifest."""
        manifest, device = self.manifest, self.plan.model.device
        before = [used for used in manifest.get("usage", []) if used["sitting"] != self.sitting]
        manifest["usage"] = [*before, {"sitting": self.sitting, **self.usage.as_dict()}]
        # Of a resumed run every sitting has an environment of its own.
        here = manifest["resumed_with"][-1] if self.sitting > 1 else manifest
        here["environment"] = here["environment"] | at("after", readings(device))

    def decode(
        self, items: Sequence[Any], tell: Callable[[Progress], None], arrivals: Sequence[float] | None = None
    ) -> None:
        """Run `items` and store each as it ends, its clock going on from the part before."""
        cell, work = self.plan.cell, self.plan.work
        by_ordinal = {item.ordinal: item for item in items}
        before = sum(log.makespan_seconds for log in self.logs)
        outside = 0.0
        shapes: Sequence[ForwardShape] = ()
        unstored: Sequence[ForwardShape] = ()
        began = time.perf_counter()

        def progress() -> Progress:
            seconds = before + time.perf_counter() - began
            return Progress(cell, self.done, len(work.items), self.failed, seconds)

        tell(progress())

        def note(so_far: Sequence[ForwardShape]) -> None:
            nonlocal shapes, unstored, outside
            noted = time.perf_counter()
            shapes, unstored = so_far, shapes_since(so_far, shapes)
            outside += time.perf_counter() - noted

        def keep(result: Generation | ScoredAnswer | Failure) -> None:
            nonlocal outside, unstored
            handed_over = time.perf_counter()
            item = by_ordinal[int(result.id)]
            if not isinstance(result, Failure):
                result = replace(result, elapsed_seconds=before + result.elapsed_seconds)
                self.engine_seconds = max(self.engine_seconds, result.elapsed_seconds)
                self.request_seconds += result.seconds["total"]
            with _uninterrupted():
                self.store.add_result(
                    self.run_id,
                    item.ordinal,
                    self.sitting,
                    item.key,
                    item.doc_id,
                    item.prompt,
                    item.prompt_sha256,
                    result,
                    *stored_beside(item),
                    unstored,
                )
                unstored = ()
            self.done += 1
            self.failed += isinstance(result, Failure)
            self.usage.look()
            tell(progress())
            outside += time.perf_counter() - handed_over

        started = time.perf_counter()
        try:
            with self.usage.window():
                self.logs.append(work.run(items, keep, cell.concurrency, note, arrivals))
        except Interrupted as stop:
            if stop.log is not None:
                self.logs.append(stop.log)
            raise
        self.wall_seconds += time.perf_counter() - started - outside

    def finish(
        self, say: Callable[[str], None], library: LibraryObservations | None, found: Mapping[str, Any] | None = None
    ) -> None:
        """Score the answers, close the books, trace the first requests, and store how it ended.

        found: what else goes into the manifest.
        """
        store, work, run_id, manifest = self.store, self.plan.work, self.run_id, self.manifest
        log = join_logs(self.logs)
        store.add_log(run_id, self.sitting, log)
        # It is stored: whatever comes now, it is not stored again.
        self.logs.clear()
        self._note_usage()
        manifest |= found or {}
        spent = self.spent | {"preparing": self.wall_seconds - log.makespan_seconds, "storing": log.store_seconds}
        with _timed(spent, "scoring"):
            manifest["notes"] += [*log.notes, *_score(self.plan, store, run_id)]
        say("measuring what its forwards cost")
        with _timed(spent, "books"):
            # Guidance runs two halves in one forward, which the separate measurement does not do. The cells of a grid are
            # many and short, and their repeats make the same forwards: one measurement will do for them.
            cell = self.plan.cell
            apart = not work.resolution.settings.cfg_scale and not (isinstance(cell.task, SpeedWork) and cell.repeat)
            books = close_books(log, self.wall_seconds, work.session.forward_costs) if apart else None
            if (wrong := self._own_clock()) is not None:
                books = wrong
                manifest["notes"].append(
                    f"By its own clock backend {cell.backend.name!r} took {wrong.host_seconds:.3g} s, and by the clock around it "
                    f"{self.wall_seconds:.3g} s: its times are not those of its work."
                )
        if books is not None:
            manifest["books"] = {**books.as_dict(), "sitting": self.sitting}
        trace = self.plan.conditions.trace
        if trace and isinstance(work, Decoding):
            say("tracing its first requests")
        with _timed(spent, "tracing"):
            manifest["notes"] += _trace(work, store, run_id, trace)
        if library and "library" not in manifest and isinstance(work, Decoding) and is_comparable(self.plan.cell):
            say("holding it against transformers' generate")
            with _timed(spent, "library"):
                manifest["library"] = library.beside(self.plan.cell, work, self.plan.model)
        manifest["outside_seconds"] = {**spent, "sitting": self.sitting}
        store.set_manifest(run_id, manifest)
        failed = any(row["error_type"] for row in store.requests(run_id))
        store.end_run(run_id, "failed" if failed else "complete")
        self.has_ended = True

    def _own_clock(self) -> Books | None:
        """Books that do not close, where the times of a foreign engine are not those of the clock around it."""
        cell = self.plan.cell
        if not self.plan.work.session.is_foreign:
            return None
        said = [self.engine_seconds]
        if cell.concurrency == 1 and cell.load == CLOSED and not self.failed:
            # One after the other, they take all of it.
            said.append(self.request_seconds)
        return next(filter(None, (own_clock_books(seconds, self.wall_seconds) for seconds in said)), None)


#: Of what makes a run the same run, what its manifest shows; the rest are columns of their own.
_SHOWN_OF_IDENTITY = ("model", "engine", "prompts", "seed", "sequential")


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
        **({"template": cell.template.as_dict()} if cell.template else {}),
        **({"part": cell.part.as_dict()} if cell.part else {}),
    }


def _warm_up(work: Decoding | Scoring, pending: Sequence[TaskItem], concurrency: int) -> dict[str, Any]:
    """Run the first requests until their time is stationary; none of it is counted."""
    items = pending[: min(concurrency, WARM_UP_REQUESTS)]
    what = f"first {len(items)} request{'s' if len(items) > 1 else ''}"
    return warm_up(lambda: work.warm_up(items, concurrency), what).as_dict()


def _score(plan: RunPlan, store: Store, run_id: str) -> list[str]:
    cell, work = plan.cell, plan.work
    if isinstance(cell.task, SpeedWork):
        return []
    found = {row["ordinal"]: work.answer(row) for row in store.answered(run_id)}
    scores = score(cell.task_name, cell.task, work.items, found, unsafe=plan.conditions.allow_code)
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


def resumed(conditions: Conditions, store: Store) -> Conditions:
    """The conditions under the invocation that --resume goes on with, so that old and new runs are of one command."""
    if not conditions.resume:
        return conditions
    words = _words(conditions.command)
    same = [run for run in store.runs() if _words(str(run["manifest"].get("command", ""))) == words]
    return replace(conditions, invocation=same[-1]["invocation"]) if same else conditions


def _words(command: str) -> list[str]:
    """A stored command without what resumes it and where it stores; a damaged one as it is."""
    try:
        words = shlex.split(command)
    except ValueError:
        return [command]
    # Before the results file is there its name may have a folder that it does not have later.
    return [
        word
        for before, word in zip(["", *words], words, strict=False)
        if word not in ("--resume", "--db") and before != "--db" and not word.startswith("--db=")
    ]


def shown_command(arguments: Sequence[str]) -> str:
    """The command line as typed, with folders reduced to their names so that a stored command names no machine."""
    return shlex.join(map(_without_folders, arguments))


def _without_folders(argument: str) -> str:
    option, equals, values = argument.partition("=") if argument.startswith("--") else ("", "", argument)
    shown = [Path(v).name or v if os.path.isabs(v) or os.path.exists(v) else v for v in values.split(",")]
    return option + equals + ",".join(shown)
