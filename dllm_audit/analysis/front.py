"""Speed and quality together: which configurations are worth having, and what each decoder takes at equal accuracy.

A configuration is a backend with a model and settings. Its newest finished run stands for it, on the documents that all of
them answered one request at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dllm_audit.analysis.asked import is_tuning
from dllm_audit.analysis.labels import label
from dllm_audit.analysis.pairing import SINGLE_RUN_NOISE
from dllm_audit.analysis.rows import asks_for_likelihoods, speed_alone, stands_alone
from dllm_audit.analysis.summary import DocumentShare, Metric, RunSummary, summarise
from dllm_audit.errors import UsageError
from dllm_audit.statistics.aup import AccuracyUnderParallelism, ParallelPoint, accuracy_under_parallelism
from dllm_audit.statistics.goodput import Goodput, ServedRequest, ServedRun, goodput
from dllm_audit.statistics.iso_accuracy import IsoAccuracyLatency, MeasuredSetting, iso_accuracy_latency
from dllm_audit.statistics.pareto import Estimate, FrontPlace, OperatingPoint, pareto_front
from dllm_audit.statistics.proportions import RateInterval, wilson_interval
from dllm_audit.statistics.throughput import Batch, RatioInterval, throughput_interval

if TYPE_CHECKING:
    from dllm_audit.store.database import Store

_SEED = 20251130

Run = Mapping[str, Any]


class Document(NamedTuple):
    """What one configuration made of a document, and what it took; the work is answered tokens."""

    correct: bool
    share: DocumentShare


@dataclass(frozen=True)
class Configuration:
    """A backend with a model and settings, by its newest run, on documents in one order. Every figure is of these alone."""

    name: str
    summary: RunSummary
    documents: tuple[Document, ...]

    @property
    def correct(self) -> tuple[bool, ...]:
        return tuple(document.correct for document in self.documents)

    @property
    def seconds(self) -> tuple[float, ...]:
        return tuple(document.share.seconds for document in self.documents)

    @property
    def mean_seconds(self) -> float:
        return sum(self.seconds) / len(self.documents)

    @property
    def accuracy(self) -> RateInterval:
        return wilson_interval(sum(self.correct), len(self.documents))

    @cached_property
    def tokens_per_second(self) -> RatioInterval:
        """Answered tokens over the seconds of their requests."""
        batches = [Batch(share.work, share.seconds) for _, share in self.documents]
        return throughput_interval([batches], level="batch", generator=np.random.default_rng(_SEED))

    @property
    def tokens_per_forward(self) -> float:
        return sum(d.share.work for d in self.documents) / max(1, sum(d.share.forwards for d in self.documents))

    @property
    def operating_point(self) -> OperatingPoint:
        """The speed as wide as single runs of one configuration were seen to differ, and its times are in doubt."""
        speed, accuracy = self.tokens_per_second, self.accuracy
        low, high = speed.low, speed.high
        if low is not None and high is not None:
            noise = SINGLE_RUN_NOISE * self.summary.doubt
            low, high = min(low, speed.ratio / noise), max(high, speed.ratio * noise)
        return OperatingPoint(
            self.name, Estimate(speed.ratio, low, high), Estimate(accuracy.rate, accuracy.low, accuracy.high)
        )

    def goodput(self, bound_seconds: float) -> Goodput:
        """Requests answered within `bound_seconds`, by share and by second."""
        served = tuple(ServedRequest(d.share.seconds, True, d.correct) for d in self.documents)
        run = ServedRun(served, sum(self.seconds))
        return goodput([run], bound_seconds, level="batch", generator=np.random.default_rng(_SEED))


@dataclass(frozen=True)
class Method:
    """A backend with a model, over all its settings. latency: at the accuracy that was asked for; aup: see statistics.aup."""

    name: str
    settings: int
    latency: IsoAccuracyLatency
    aup: AccuracyUnderParallelism


@dataclass(frozen=True)
class Front:
    """The configurations of one task.

    metric: which decides. asked: documents that any of them was asked. places: on the front of answered tokens a second and
    accuracy, in the order of `points`. target: the accuracy (0..1) at which latencies are compared, and whose it is.
    left_out: what could not be taken along, with the reason.
    """

    task: str
    metric: str
    asked: int
    points: tuple[Configuration, ...]
    places: tuple[FrontPlace, ...]
    methods: tuple[Method, ...]
    target: float
    target_of: str
    left_out: tuple[tuple[str, str], ...]

    @property
    def documents(self) -> int:
        """That all of them answered."""
        return len(self.points[0].documents)

    @property
    def best_accuracy(self) -> float:
        return max(point.accuracy.rate for point in self.points)


def front_of(store: Store, task: str | None, accuracy: float | None) -> Front:
    """The front of `task`, by default of the newest run's.

    accuracy: 0..1, at which latencies are compared; None: that of the autoregressive baseline, or of the most accurate
    configuration where there is none. Raises UsageError where nothing can be compared.
    """
    runs = [run for run in store.runs() if run["role"] != "control" and not is_tuning(run)]
    task = task or next((str(run["task"]) for run in reversed(runs) if not _why_not(run)), None)
    left_out, summaries = [], {}
    for run in runs:
        if run["task"] != task:
            continue
        summary = None if (why := _why_not(run)) else summarise(store, run["run_id"])
        if summary is not None and summary.doubt == float("inf"):
            why = "times are not reliable: its books do not close"
        if summary is None or why:
            left_out.append((label(run, concurrency=True), why))
        else:
            summaries[_name(run)] = summary
    if not summaries:
        what = "no finished run" if task is None else f"no finished run of {task}"
        raise UsageError(
            f"{store.path} holds {what} that answers one request at a time in reliable times, so there is nothing to compare. "
            "Make some: dllm-audit run --backend dualcache --threshold 0.7,0.9 --baseline ar --task gsm_mini"
        )
    metric, points, unjudged = _on_common_documents(store, summaries)
    chosen = _reference(points)
    judge = chosen.correct if accuracy is None else accuracy
    best = max(point.accuracy.rate for point in points)
    return Front(
        str(task),
        metric,
        max(int(point.summary.run["planned_requests"]) for point in points),
        points,
        pareto_front([point.operating_point for point in points]),
        _methods(points, judge, best),
        chosen.accuracy.rate if accuracy is None else accuracy,
        f"of {chosen.name}" if accuracy is None else "asked for",
        (*left_out, *unjudged),
    )


def _why_not(run: Run) -> str:
    if run["status"] != "complete":
        return f"{run['status']}, not complete"
    if asks_for_likelihoods(run) or speed_alone(run):
        return "nothing was answered that is judged"
    if not stands_alone(run):
        return "requests shared forwards or queued, so that latencies are those of that load"
    return ""


def _name(run: Run) -> str:
    """The configuration, whichever run of it."""
    return f"{label({**run, 'role': 'candidate', 'repeat': 0})} on {run['model']}"


def _on_common_documents(
    store: Store, summaries: Mapping[str, RunSummary]
) -> tuple[str, tuple[Configuration, ...], list[tuple[str, str]]]:
    """(the metric that decides, the configurations on what all of them answered, those that it does not judge)."""
    metrics = {name: summary.primary_metric for name, summary in summaries.items()}
    judged = {name: metric for name, metric in metrics.items() if metric is not None and metric.binary}
    if not judged:
        raise UsageError(
            "No metric of this task calls an answer right or wrong, so there is no accuracy to hold equal."
        )
    deciding = list(judged.values())[-1]
    kept = [name for name, metric in judged.items() if metric.label == deciding.label]
    answered = {name: _documents(store, summaries[name], deciding) for name in kept}
    common = sorted(set.intersection(*map(set, answered.values())))
    if not common:
        raise UsageError("The configurations of this task have no document in common. Run them with one --limit.")
    points = tuple(
        Configuration(name, summaries[name], tuple(answered[name][document] for document in common)) for name in kept
    )
    unjudged = [(name, f"not judged by {deciding.label}") for name in summaries if name not in kept]
    return deciding.label, points, unjudged


def _documents(store: Store, summary: RunSummary, metric: Metric) -> dict[int, Document]:
    """The documents of a run that were answered and judged, by their ids."""
    return {
        row["doc_id"]: Document(bool(row["value"]), share)
        for row in store.answers(summary.run_id)
        if (row["metric"], row["filter"]) == (metric.name, metric.filter)
        and (share := summary.documents.get(("document", row["doc_id"]))) is not None
        and share.seconds > 0
    }


def _reference(points: Sequence[Configuration]) -> Configuration:
    """Whose accuracy others are held to: the newest autoregressive one's, else the most accurate one's."""
    baselines = [point for point in points if point.summary.run["kind"] == "autoregressive"]
    return baselines[-1] if baselines else max(points, key=lambda point: sum(point.correct))


def _methods(points: Sequence[Configuration], judge: float | Sequence[bool], best: float) -> tuple[Method, ...]:
    groups: dict[str, list[Configuration]] = {}
    for point in points:
        groups.setdefault(f"{point.summary.run['backend']} on {point.summary.run['model']}", []).append(point)
    methods = []
    for name, members in groups.items():
        measured = [MeasuredSetting(p.name, p.correct, p.seconds) for p in members]
        latency = iso_accuracy_latency(measured, judge, generator=np.random.default_rng(_SEED))
        methods.append(Method(name, len(members), latency, _aup(members, best)))
    return tuple(methods)


def _aup(members: Sequence[Configuration], best: float) -> AccuracyUnderParallelism:
    counted = [ParallelPoint(p.tokens_per_forward, 100 * p.accuracy.rate) for p in members if p.tokens_per_forward > 0]
    if len(counted) == 1:
        # Its area counts what one setting has from 0 forwards on, whatever that setting lost.
        return AccuracyUnderParallelism(None, (), "one setting is no curve: it takes two or more")
    if not best or not counted:
        return AccuracyUnderParallelism(None, (), "nothing was answered correctly, or no forward was counted")
    return accuracy_under_parallelism(counted, 100 * best)
