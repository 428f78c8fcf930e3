"""Decode both sides of a question in turns, and stop as soon as it is decided.

The documents come in a random order. Each is decoded by the candidate and right after by the baseline, the next one the
other way round (A B B A ...): whatever the machine does for longer than a request meets both alike, and the pairs are
as independent as the documents. Every few documents the answers are scored, outside every clock, and the audit is taken further.
The A/A control decodes the first documents only: what it and its twin differ by must be exceeded from then on.

Both sides are stored as runs like any other. Only one request is in flight: requests that share forwards are not
independent, and rows would be filled and drained anew for every pair.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dllm_audit.analysis.sequential import (
    ALPHA,
    DocumentCost,
    audit_pairs,
    document_costs,
    quality_figure,
    shown_audit,
    speed_figure,
)
from dllm_audit.analysis.summary import Metric, deciding_metric, metrics_of_rows
from dllm_audit.errors import UsageError
from dllm_audit.evaluate.execution import begin, plan_run, revisit
from dllm_audit.evaluate.parts import documents_in_order
from dllm_audit.evaluate.scoring import score
from dllm_audit.evaluate.work import Scoring
from dllm_audit.statistics.sequential import MINIMUM_PAIRS, AuditPair, SequentialAudit

if TYPE_CHECKING:
    from dllm_audit.analysis.figures import Figure
    from dllm_audit.evaluate.execution import Cell, Conditions, OpenRun, Progress, RunPlan
    from dllm_audit.evaluate.library import LibraryObservations
    from dllm_audit.measure.roofline import DeviceSpeed
    from dllm_audit.models.loading import LoadedModel
    from dllm_audit.store.database import Store

PART_DOCUMENTS = 10
"""So many documents are scored together: lm-eval takes a quarter of a second for one, and hardly more for ten."""

CONTROL_DOCUMENTS = MINIMUM_PAIRS
"""The A/A control decodes so many: before as many pairs no speed is decided."""


#: In this order a document is decoded, or in the opposite one: the control beside its twin, as the candidate is.
_ROLES = ("candidate", "baseline", "control")


@dataclass(frozen=True)
class Side:
    """One side of an audit: its cell (candidate, baseline or control) and the model that it decodes."""

    cell: Cell
    model: LoadedModel
    load_seconds: float
    speed: DeviceSpeed | None


@dataclass(frozen=True)
class AuditState:
    """Where an audit stands; told after every part. speed, quality: with intervals that hold whenever one stops (95 %)."""

    done: int
    planned: int
    audit: SequentialAudit
    speed: Figure
    quality: Figure


@dataclass(frozen=True)
class AuditOutcome:
    """The runs that an audit made, candidate first, and what is stored of it with each."""

    run_ids: tuple[str, ...]
    facts: Mapping[str, Any]


def check_audit(cells: Sequence[Cell], engine: str) -> None:
    """Raise UsageError where the cells of a plan are not the two sides of one question, one request in flight.

    engine: how forwards are executed.
    """
    candidates = [cell for cell in cells if cell.role == "candidate"]
    baselines = [cell for cell in cells if cell.role == "baseline"]
    if not baselines:
        raise UsageError(
            "--until-decided asks whether a candidate is faster than a baseline and not worse: give --baseline NAME."
        )
    if any(cell.concurrency > 1 or cell.load.kind != "closed" for cell in cells):
        raise UsageError(
            "--until-decided needs one request in flight (--concurrency 1): requests that share forwards are not "
            "independent, so nothing may be concluded from each as it ends."
        )
    if engine == "compile":
        raise UsageError(
            "--until-decided decodes document by document in turns, and --engine compile compiles anew each time. "
            "Use --engine eager or cudagraph."
        )
    if len(candidates) > 1 or len(baselines) > 1:
        several = len(candidates) if len(candidates) > 1 else len(baselines)
        raise UsageError(
            f"--until-decided decides one question, and this plan has {several} of them. Give one backend, one task, one "
            "threshold and no --repeats; of several thresholds --choose takes one beforehand."
        )


def run_audit(
    sides: Sequence[Side],
    conditions: Conditions,
    store: Store,
    margin: float,
    tell: Callable[[AuditState], None],
    progress: Callable[[Progress], None] = lambda progress: None,
    say: Callable[[str], None] = lambda what: None,
    library: LibraryObservations | None = None,
) -> AuditOutcome:
    """Decode candidate, baseline and, if there is one, its control in turns until "faster and not worse" is decided.

    margin: the loss in quality that is allowed, a share. With `conditions.resume` what is stored is not decoded again, and
    the audit is taken through it in the same order. Raises UsageError where the task's metric is not right or wrong for
    each document, and Interrupted after Ctrl-C; what had finished is stored in both cases.
    """
    sides = sorted(sides, key=lambda side: _ROLES.index(side.cell.role))
    plans = [plan_run(side.cell, side.model, conditions) for side in sides]
    asked = {
        "audit": _digest([*(plan.content_key for plan in plans), margin, ALPHA, PART_DOCUMENTS]),
        "margin": margin,
        "alpha": ALPHA,
        "part_documents": PART_DOCUMENTS,
    }
    judge = _Judge()
    turns = [
        _Turn(side, _as_side(plan, asked), store, conditions.seed, judge)
        for side, plan in zip(sides, plans, strict=True)
    ]
    documents = turns[0].documents
    with ExitStack() as kept:
        watched = _watch(turns, documents, margin, tell, progress, lambda: _open(turns, kept))
        facts = asked | _found(turns, documents, watched)
        run_ids = tuple(turn.finish({**facts, "side": turn.side.cell.role}, say, library) for turn in turns)
    return AuditOutcome(run_ids, facts)


def _watch(
    turns: Sequence[_Turn],
    documents: Sequence[int],
    margin: float,
    tell: Callable[[AuditState], None],
    progress: Callable[[Progress], None],
    open_all: Callable[[], None],
) -> AuditState:
    """Part by part, until it is decided or the documents run out: where it then stands."""
    audit, shown = SequentialAudit(margin, ALPHA), shown_audit(margin)
    has_bar = False
    state = AuditState(0, len(documents), audit, speed_figure(shown), quality_figure(shown))
    for first in range(0, len(documents), PART_DOCUMENTS):
        part = documents[first : first + PART_DOCUMENTS]
        done = first + len(part)
        if any(turn.lacks(part) for turn in turns):
            open_all()
        for place, doc in enumerate(part, first):
            for turn in turns if place % 2 == 0 else reversed(turns):
                turn.take(doc, progress)
        for turn in turns:
            turn.look()
        if done >= CONTROL_DOCUMENTS and not has_bar:
            has_bar = True
            audit = SequentialAudit(margin, ALPHA, _bar(turns)).update_all(
                _pairs(turns[0], turns[1], documents[:first])
            )
        pairs = _pairs(turns[0], turns[1], part)
        audit, shown = audit.update_all(pairs), shown.update_all(pairs)
        state = AuditState(done, len(documents), audit, speed_figure(shown), quality_figure(shown))
        tell(state)
        if audit.decision != "undecided":
            break
    return state


def _open(turns: Sequence[_Turn], kept: ExitStack) -> None:
    """Begin every run that has something left to decode: each side is warm before any of them is timed."""
    for turn in turns:
        if turn.run is None and turn.pending:
            turn.run = turn.begin()
            kept.enter_context(turn.run.kept())


@dataclass
class _Judge:
    """Says which answers are right, by one metric for all sides: the one that decides in comparisons too."""

    metric: Metric | None = None

    def right(self, plan: RunPlan, items: Sequence[Any], rows: Mapping[int, Mapping[str, Any]]) -> dict[int, bool]:
        """By document, of those whose requests were all answered. rows: what was answered, by ordinal."""
        found = {item.ordinal: plan.work.answer(rows[item.ordinal]) for item in items if item.ordinal in rows}
        scores = score(plan.cell.task_name, plan.cell.task, items, found, unsafe=plan.conditions.allow_code)
        if not scores.answers:
            return {}
        if self.metric is None:
            self.metric = deciding_metric(metrics_of_rows(scores.answers, scores.metrics, (), set()))
        metric = self.metric
        key = None if metric is None else (metric.name, metric.filter)
        values = {row["doc_id"]: row["value"] for row in scores.answers if (row["metric"], row["filter"]) == key}
        if metric is None or metric.lower_is_better or not set(values.values()) <= {0.0, 1.0}:
            graded = "has none" if metric is None else f"has {metric.name}, which is graded"
            raise UsageError(
                "--until-decided needs a metric that is right or wrong for each document, and task "
                f"{plan.cell.task_name!r} {graded}. Run it without --until-decided."
            )
        return {doc: value == 1.0 for doc, value in values.items()}


@dataclass
class _Turn:
    """One side at work. pending: what is left to decode, by document. costs, right: of the documents that were looked at.

    new: documents that were decoded since.
    """

    side: Side
    plan: RunPlan
    store: Store
    seed: int
    judge: _Judge
    run: OpenRun | None = None
    costs: dict[int, DocumentCost] = field(default_factory=dict)
    right: dict[int, bool] = field(default_factory=dict)
    new: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.documents = documents_in_order((item.doc_id for item in self.plan.work.items), self.seed, "documents")
        if self.side.cell.role == "control":
            self.documents = self.documents[:CONTROL_DOCUMENTS]
        self.earlier = self.plan.earlier(self.store)
        wanted = set(self.documents)
        self.pending: dict[int, list[Any]] = {}
        for item in self.plan.pending(self.store, self.earlier):
            if item.doc_id in wanted:
                self.pending.setdefault(item.doc_id, []).append(item)
        if self.earlier is not None:
            self._look_at(str(self.earlier["run_id"]), wanted - self.pending.keys())

    def lacks(self, part: Sequence[int]) -> bool:
        return any(doc in self.pending for doc in part)

    def begin(self) -> OpenRun:
        waiting = [item for doc in self.documents for item in self.pending.get(doc, ())]
        return begin(self.plan, self.store, waiting, self.earlier, self.side.load_seconds, self.side.speed)

    def take(self, doc: int, progress: Callable[[Progress], None]) -> None:
        """Decode what of a document is not stored."""
        items = self.pending.pop(doc, [])
        if items:
            assert self.run is not None
            self.run.decode(items, progress)
            self.new.add(doc)

    def look(self) -> None:
        """See what came out since."""
        if self.new:
            assert self.run is not None
            self._look_at(self.run.run_id, self.new)
            self.new = set()

    def _look_at(self, run_id: str, documents: set[int]) -> None:
        """What stored documents cost, and which of them are right; what failed is neither."""
        rows = [row for row in self.store.requests(run_id) if row["doc_id"] in documents]
        self.costs |= document_costs(rows)
        items = [item for item in self.plan.work.items if item.doc_id in documents]
        answered = {row["ordinal"]: row for row in rows if row["error_type"] is None}
        self.right |= self.judge.right(self.plan, items, answered)

    def finish(self, facts: Mapping[str, Any], say: Callable[[str], None], library: LibraryObservations | None) -> str:
        if self.run is not None:
            self.run.finish(say, library, {"sequential": facts})
            return self.run.run_id
        assert self.earlier is not None
        earlier = {**self.earlier, "manifest": {**self.earlier["manifest"], "sequential": facts}}
        self.store.set_manifest(earlier["run_id"], earlier["manifest"])
        return revisit(self.plan, self.store, earlier)


def _as_side(plan: RunPlan, asked: Mapping[str, Any]) -> RunPlan:
    """The plan of a run that is a side of this audit, and so another run than the same one by itself."""
    return replace(plan, identity={**plan.identity, "sequential": {**asked, "side": plan.cell.role}})


def _pairs(ours: _Turn, theirs: _Turn, documents: Sequence[int]) -> list[AuditPair]:
    """The pairs of two sides for these documents, in their order."""
    scored = isinstance(ours.plan.work, Scoring)
    return audit_pairs(documents, (ours.costs, theirs.costs), (ours.right, theirs.right), "work", scored)


def _bar(turns: Sequence[_Turn]) -> float:
    """What the same configuration differs from itself by, as a factor of at least 1."""
    control = next((turn for turn in turns if turn.side.cell.role == "control"), None)
    if control is None:
        return 1.0
    ratio = SequentialAudit(0.5).update_all(_pairs(control, turns[1], control.documents)).speed.ratio
    return max(ratio, 1 / ratio) if ratio else 1.0


def _found(turns: Sequence[_Turn], documents: Sequence[int], state: AuditState) -> dict[str, Any]:
    """What became of an audit, for the manifests of its runs."""
    audit, metric = state.audit, turns[0].judge.metric
    taken = set(documents[: state.done])
    asked = [item.doc_id for turn in turns[:2] for item in turn.plan.work.items]
    return {
        "stopped": "documents ran out" if audit.decision == "undecided" else "decided",
        "decision": audit.decision,
        "decided_after": audit.decided_after,
        "pairs": audit.pairs,
        "faster_than": audit.faster_than,
        "metric": None if metric is None else metric.name,
        "filter": None if metric is None else metric.filter,
        "documents": list(documents[: state.done]),
        "documents_planned": state.planned,
        "speed": _interval(state.speed),
        "quality": _interval(state.quality),
        "more_pairs": audit.more_pairs(),
        "requests": sum(doc in taken for doc in asked),
        "requests_saved": sum(doc not in taken for doc in asked),
        "fixed_plan_pairs": audit.fixed_plan() if audit.pairs else None,
    }


def _interval(figure: Figure) -> dict[str, Any]:
    return {"value": figure.value, "low": figure.low, "high": figure.high, "confidence": 1 - ALPHA}


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
