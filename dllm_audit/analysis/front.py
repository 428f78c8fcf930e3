"""Speed and quality together: which configurations are worth having, and what each decoder takes at equal accuracy.

A configuration is a backend with a model and settings. Its newest finished run stands for it, on the documents that all of
them answered one request at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dllm_audit.analysis.asked import is_tuning
from dllm_audit.analysis.figures import Figure
from dllm_audit.analysis.labels import label
from dllm_audit.analysis.pairing import SINGLE_RUN_NOISE
from dllm_audit.analysis.rows import asks_for_likelihoods, sound, speed_alone, stands_alone, without_damaged
from dllm_audit.analysis.summary import RunSummary, deciding_metric, summarise
from dllm_audit.errors import UsageError
from dllm_audit.statistics.aup import AccuracyUnderParallelism, ParallelPoint, accuracy_under_parallelism
from dllm_audit.statistics.goodput import Goodput, ServedRequest, ServedRun, goodput
from dllm_audit.statistics.iso_accuracy import IsoAccuracyLatency, MeasuredSetting, iso_accuracy_latency
from dllm_audit.statistics.pareto import Estimate, FrontPlace, OperatingPoint, pareto_front

if TYPE_CHECKING:
    from dllm_audit.store.database import Store

_SEED = 20251130

Run = Mapping[str, Any]


@dataclass(frozen=True)
class Point:
    """One configuration on the documents in common.

    quality: of the deciding metric, in 0..1. correct, seconds: of each document, in the order of their ids. goodput: None
    where no bound was given. place: on the front of answered tokens a second and quality.
    """

    name: str
    summary: RunSummary
    quality: Figure
    correct: tuple[bool, ...]
    seconds: tuple[float, ...]
    goodput: Goodput | None
    place: FrontPlace

    @property
    def mean_seconds(self) -> float:
        return sum(self.seconds) / len(self.seconds)


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

    metric: which decides. target: the accuracy (0..1) at which latencies are compared, and whose it is. left_out: what
    could not be taken along, with the reason. documents: that all of them answered; most: that any was asked.
    """

    task: str
    metric: str
    documents: int
    most: int
    points: tuple[Point, ...]
    methods: tuple[Method, ...]
    target: float
    target_of: str
    best_accuracy: float
    left_out: tuple[tuple[str, str], ...]


def front_of(store: Store, task: str | None, accuracy: float | None, bound_seconds: float | None) -> Front:
    """The front of `task`, by default of the newest run's.

    accuracy: 0..1, at which latencies are compared; None: that of the autoregressive baseline, or of the most accurate
    configuration where there is none. bound_seconds: for goodput. Raises UsageError where nothing can be compared.
    """
    runs = [run for run in store.runs() if run["role"] != "control" and not is_tuning(run)]
    usable = [run for run in runs if not _why_not(run)]
    task = task or (usable[-1]["task"] if usable else None)
    asked = [run for run in runs if run["task"] == task]
    left_out = [(label(run, concurrency=True), why) for run in asked if (why := _why_not(run))]
    newest: dict[str, Run] = {_name(run): run for run in asked if not _why_not(run)}
    if not newest:
        what = "no finished run" if task is None else f"no finished run of {task}"
        raise UsageError(
            f"{store.path} holds {what} that answers one request at a time, so there is nothing to compare. Make some: "
            "dllm-audit run --backend dualcache --threshold 0.7,0.9 --baseline ar --task gsm_mini"
        )
    answered = {name: _documents(store, run) for name, run in newest.items()}
    summaries = {name: summarise(store, run["run_id"]) for name, run in newest.items()}
    metrics = {name: deciding_metric(summary.metrics) for name, summary in summaries.items()}
    judged = {name: metric.label for name, metric in metrics.items() if metric is not None and metric.binary}
    if not judged:
        raise UsageError(f"No metric of {task} calls an answer right or wrong, so there is no accuracy to hold equal.")
    deciding = list(judged.values())[-1]
    kept = [name for name in newest if judged.get(name) == deciding]
    left_out += [(name, f"not judged by {deciding}") for name in newest if name not in kept]
    common = sorted(set.intersection(*({*answered[name][deciding]} for name in kept)))
    if not common:
        raise UsageError(f"The configurations of {task} have no document in common. Run them with one --limit.")
    rows = {name: [answered[name][deciding][document] for document in common] for name in kept}
    columns = {name: (tuple(c for c, _ in found), tuple(s for _, s in found)) for name, found in rows.items()}
    qualities = {name: summaries[name].metrics for name in kept}
    figures = {name: next(metric.figure for metric in qualities[name] if metric.label == deciding) for name in kept}
    places = pareto_front([_operating_point(name, summaries[name], figures[name]) for name in kept])
    points = tuple(
        Point(name, summaries[name], figures[name], *columns[name], _goodput(columns[name], bound_seconds), place)
        for name, place in zip(kept, places, strict=True)
    )
    target, reference = accuracy, "asked for"
    baselines = [point for point in points if point.summary.run["kind"] == "autoregressive"]
    judge: float | tuple[bool, ...]
    if accuracy is None:
        chosen = baselines[-1] if baselines else max(points, key=lambda point: sum(point.correct))
        judge, target, reference = chosen.correct, sum(chosen.correct) / len(common), f"of {chosen.name}"
    else:
        judge = accuracy
    assert target is not None
    best = max(sum(point.correct) / len(common) for point in points)
    return Front(
        str(task),
        deciding,
        len(common),
        max(int(newest[name]["planned_requests"]) for name in kept),
        points,
        _methods(points, judge, best),
        target,
        reference,
        best,
        tuple(left_out),
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


def _documents(store: Store, run: Run) -> dict[str, dict[Any, tuple[bool, float]]]:
    """By metric and document: right or wrong, and seconds of its requests. A failed request is as wrong as it gets."""
    done, _ = without_damaged(store.answered(run["run_id"]))
    seconds: dict[Any, float] = {}
    for row in done:
        if sound(row["total_seconds"]) and row["total_seconds"] > 0:
            seconds[row["doc_id"]] = seconds.get(row["doc_id"], 0.0) + row["total_seconds"]
    found: dict[str, dict[Any, tuple[bool, float]]] = {}
    for row in store.answers(run["run_id"]):
        name = row["metric"] if row["filter"] == "none" else f"{row['metric']}, {row['filter']}"
        if row["doc_id"] in seconds and row["value"] in (0, 1):
            found.setdefault(name, {})[row["doc_id"]] = (bool(row["value"]), seconds[row["doc_id"]])
    return found


def _operating_point(name: str, summary: RunSummary, quality: Figure) -> OperatingPoint:
    """The speed as wide as single runs of one configuration were seen to differ: no place hangs on less."""
    speed, value = summary.throughput, summary.throughput.value or 0.0
    low, high = speed.low, speed.high
    if low is not None and high is not None:
        low, high = min(low, value / SINGLE_RUN_NOISE), max(high, value * SINGLE_RUN_NOISE)
    return OperatingPoint(name, Estimate(value, low, high), Estimate(quality.value or 0.0, quality.low, quality.high))


def _goodput(columns: tuple[Sequence[bool], Sequence[float]], bound_seconds: float | None) -> Goodput | None:
    if bound_seconds is None:
        return None
    correct, seconds = columns
    served = ServedRun(tuple(ServedRequest(s, True, c) for c, s in zip(correct, seconds, strict=True)), sum(seconds))
    return goodput([served], bound_seconds, level="batch", generator=np.random.default_rng(_SEED))


def _methods(points: Sequence[Point], judge: float | Sequence[bool], best: float) -> tuple[Method, ...]:
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(f"{point.summary.run['backend']} on {point.summary.run['model']}", []).append(point)
    methods = []
    for name, members in groups.items():
        measured = [MeasuredSetting(p.name, p.correct, p.seconds) for p in members]
        latency = iso_accuracy_latency(measured, judge, generator=np.random.default_rng(_SEED))
        methods.append(Method(name, len(members), latency, _aup(members, best)))
    return tuple(methods)


def _aup(members: Sequence[Point], best: float) -> AccuracyUnderParallelism:
    if not best:
        return AccuracyUnderParallelism(None, (), "no configuration answers anything correctly")
    counted = [
        ParallelPoint(p.summary.committed_per_forward.value, 100 * sum(p.correct) / len(p.correct))
        for p in members
        if p.summary.committed_per_forward.value
    ]
    if not counted:
        return AccuracyUnderParallelism(None, (), "no forward is counted")
    return accuracy_under_parallelism(counted, 100 * best)
