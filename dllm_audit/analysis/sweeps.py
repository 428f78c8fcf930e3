"""A sweep over concurrency: how two configurations compare at each, and where the baseline overtakes, measured and modelled.

An autoregressive model leaves compute idle at low concurrency, which is what parallel decoding uses; so a speed-up at one
request in flight says nothing of a busy server. That nobody overtakes in the measured range is a result too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dllm_audit.analysis.figures import Figure
from dllm_audit.analysis.labels import label
from dllm_audit.analysis.repeats import RepeatGroup, configuration, paired_repeats
from dllm_audit.analysis.words import listed
from dllm_audit.measure.roofline import Roofline, Work
from dllm_audit.measure.roofline_plans import Crossing, crossing
from dllm_audit.statistics.crossover import Crossover, crossover_concurrency
from dllm_audit.statistics.throughput import MINIMUM_CLUSTERS, Batch

if TYPE_CHECKING:
    from dllm_audit.analysis.pairing import Comparison, Comparisons
    from dllm_audit.analysis.summary import RunSummary

MOST_IN_FLIGHT = 1024
"""The roofline is searched for a crossover up to here, or to the largest measured concurrency."""

_SEED = 20251129


@dataclass(frozen=True)
class SweepPoint:
    """One concurrency: the speed of each side over its repeats, and their ratio."""

    concurrency: int
    candidate: Figure
    baseline: Figure
    speed: Figure
    comparison: Comparison


@dataclass(frozen=True)
class Prediction:
    """Where the roofline has the baseline overtake, from the forwards that ran at the lowest concurrency.

    crossing: None where `reason` says why nothing is predicted.
    """

    crossing: Crossing | None
    taken_at: int
    reason: str = ""

    @property
    def sentence(self) -> str:
        found = self.crossing
        if found is None:
            return f"The roofline predicts nothing: {self.reason}."
        base = f"modelled from the forwards that ran at {self.taken_at} in flight"
        if found.faster_from is None:
            return (
                f"The roofline has the baseline as fast or faster at every concurrency up to {found.most:,} ({base})."
            )
        if found.crossover is None:
            return f"The roofline predicts none up to {found.most:,} ({base})."
        later = f" after {found.faster_from}" if found.faster_from > 1 else ""
        return f"The roofline has the baseline as fast again{later} from {found.crossover:,} in flight on ({base})."


@dataclass(frozen=True)
class Sweep:
    """Two configurations at several concurrencies. crossover: None where `reason` says why it cannot be worked out.

    notes: what to know before using it, as sentences.
    """

    task: str
    candidate: str
    baseline: str
    points: tuple[SweepPoint, ...]
    crossover: Crossover | None
    reason: str
    prediction: Prediction
    notes: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """The measured result in words, its interval included."""
        if self.crossover is None:
            return f"Where the baseline overtakes is not known: {self.reason}."
        return self.crossover.sentence

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        found, predicted = self.crossover, self.prediction.crossing
        return {
            "task": self.task,
            "candidate": self.candidate,
            "baseline": self.baseline,
            "points": [
                {
                    "concurrency": point.concurrency,
                    "candidate": vars(point.candidate),
                    "baseline": vars(point.baseline),
                    "speed": vars(point.speed),
                    "runs": [point.comparison.candidate.run_id, point.comparison.baseline.run_id],
                }
                for point in self.points
            ],
            "crossover": None
            if found is None
            else {
                name: getattr(found, name) for name in ("verdict", "concurrency", "low", "high", "repeats", "reason")
            },
            "sentence": self.sentence,
            "roofline": None if predicted is None else vars(predicted),
            "roofline_sentence": self.prediction.sentence,
            "notes": list(self.notes),
        }


def sweeps_of(found: Sequence[Comparison], comparisons: Comparisons) -> tuple[Sweep, ...]:
    """The sweeps among these comparisons: those of the same two configurations of one command at two concurrencies or more."""
    groups: dict[tuple[str, str], dict[int, Comparison]] = {}
    for comparison in found:
        runs = (comparison.candidate.run, comparison.baseline.run)
        if runs[0]["concurrency"] == runs[1]["concurrency"] and comparison.speed.value is not None:
            ours, theirs = (configuration(run, apart=("concurrency",)) for run in runs)
            groups.setdefault((ours, theirs), {})[int(runs[0]["concurrency"])] = comparison
    return tuple(
        _sweep([of_pair[level] for level in sorted(of_pair)], comparisons)
        for of_pair in groups.values()
        if len(of_pair) > 1
    )


def _sweep(found: Sequence[Comparison], comparisons: Comparisons) -> Sweep:
    first = found[0]
    groups = [(comparisons.repeats(each.candidate.run_id), comparisons.repeats(each.baseline.run_id)) for each in found]
    points = tuple(
        SweepPoint(int(each.candidate.run["concurrency"]), ours.pace, theirs.pace, each.speed, each)
        for each, (ours, theirs) in zip(found, groups, strict=True)
    )
    crossover, reason = _crossover([point.concurrency for point in points], groups)
    return Sweep(
        task=str(first.candidate.run["task"]),
        candidate=_name(first.candidate.run),
        baseline=_name(first.baseline.run),
        points=points,
        crossover=crossover,
        reason=reason,
        prediction=_prediction(first.candidate, first.baseline, points[-1].concurrency),
        notes=tuple(_notes(points, crossover)),
    )


def _name(run: Mapping[str, Any]) -> str:
    return label({**run, "repeat": 0, "concurrency": 1, "role": "candidate"})


def _crossover(
    concurrencies: Sequence[int], groups: Sequence[tuple[RepeatGroup, RepeatGroup]]
) -> tuple[Crossover | None, str]:
    """Over the repeats that both sides have at every concurrency."""
    timed = [
        {
            ours.run["repeat"]: (ours, theirs)
            for ours, theirs in paired_repeats(*(side.summaries for side in pair))
            if all(run.done_work and run.makespan_seconds.value for run in (ours, theirs))
        }
        for pair in groups
    ]
    common = sorted(set.intersection(*(set(pairs) for pairs in timed)))
    if not common:
        return None, "no repeat was answered by both sides at every concurrency"
    sides = (
        [[[_batch(pairs[number][side])] for number in common] for pairs in timed] for side in (0, 1)
    )  # fmt: skip
    return crossover_concurrency(concurrencies, *sides, generator=np.random.default_rng(_SEED)), ""


def _batch(run: RunSummary) -> Batch:
    return Batch(run.done_work, run.makespan_seconds.value or 0.0)


def _prediction(candidate: RunSummary, baseline: RunSummary, measured: int) -> Prediction:
    taken_at = int(candidate.run["concurrency"])
    for side in (candidate, baseline):
        if not side.bound.applicable:
            return Prediction(None, taken_at, f"of {side.run['model']}, {side.bound.total.reason}")
        if not side.answered_tokens:
            return Prediction(None, taken_at, "one side answered no tokens")
    rates = [_rates(side, max(measured, MOST_IN_FLIGHT)) for side in (candidate, baseline)]
    return Prediction(crossing(*rates), taken_at)


def _rates(side: RunSummary, most: int) -> list[float]:
    """Answered tokens per second at the bound with 1 to `most` rows that share every forward.

    The forwards are those that ran; of each kind the mean stands for all, since bytes and FLOPs are linear in the work.
    """
    roofline = side.bound.roofline
    assert isinstance(roofline, Roofline)
    kinds: dict[str, tuple[float, Work]] = {}
    for forwards in side.bound.ran:
        number, total = kinds.get(forwards.kind, (0.0, Work(0)))
        work = forwards.work.times(forwards.count)
        kinds[forwards.kind] = (
            number + forwards.count * forwards.rows,
            Work(*(getattr(total, name) + getattr(work, name) for name in Work.__dataclass_fields__)),
        )
    steps = [(number, total.times(1 / number)) for number, total in kinds.values()]
    return [
        rows * side.answered_tokens / sum(number * roofline.bound(work.times(rows)).seconds for number, work in steps)
        for rows in range(1, most + 1)
    ]


def _notes(points: Sequence[SweepPoint], crossover: Crossover | None) -> list[str]:
    notes = []
    if crossover is not None and crossover.repeats >= MINIMUM_CLUSTERS:
        notes.append("The interval of the crossover is over repeats of the same documents: others may move it further.")
    weak = [
        str(point.concurrency)
        for point in points
        if point.comparison.strength is not None and point.comparison.strength.verdict == "weak"
    ]
    if weak:
        notes.append(f"The baseline is weak at {listed(weak)} in flight, so a stronger one would overtake earlier.")
    unreliable = [str(point.concurrency) for point in points if point.comparison.unreliable]
    if unreliable:
        notes.append(
            f"At {listed(unreliable)} in flight the times are not reliable, and so neither is where they cross."
        )
    loose = [str(p.concurrency) for p in points if p.comparison.doubts and not p.comparison.unreliable]
    if loose:
        notes.append(
            f"At {listed(loose)} in flight the books do not close within 5 %, for which the interval of where they cross makes no "
            "allowance."
        )
    spoiled = [str(point.concurrency) for point in points if not point.comparison.attributable]
    if spoiled:
        notes.append(f"At {listed(spoiled)} in flight something else differs too, so it is not attributable there.")
    if all(point.comparison.baseline.run["provenance"] == "reference" for point in points):
        notes.append(
            "Both sides ran in the reference engine: where a served engine overtakes is another question, which needs one."
        )
    return notes
