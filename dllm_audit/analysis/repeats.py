"""Repeats of one configuration: how its speed varies from run to run.

Requests of one run share a machine's mood, so an interval over them says nothing about another day's run. With five
repeats or more the repeats themselves are drawn; with fewer, the variation between runs is unknown.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dllm_audit.analysis.figures import Figure
from dllm_audit.analysis.summary import SEED, RunSummary
from dllm_audit.statistics.throughput import MINIMUM_CLUSTERS, Batch, speedup_interval, throughput_interval

_SAME = (
    "invocation", "backend", "provenance", "model", "task", "role", "concurrency", "load", "arrival_rate", "fidelity",
)  # fmt: skip

#: Facts of a manifest that repeats share too: a run on other prompts, or in another number format, is no repeat.
_SAME_FACTS = ("model", "engine", "prompts")


@dataclass(frozen=True)
class RepeatGroup:
    """Runs that differ only in their number, in that order. `pace`, see `RunSummary.pace`, is over all of them together.

    slowest, fastest: the pace of single runs; None where none was timed.
    """

    summaries: tuple[RunSummary, ...]
    pace: Figure
    slowest: float | None
    fastest: float | None

    @property
    def throughput(self) -> Figure:
        """Answered tokens per second of all of them together; unknown where given answers were scored."""
        first = self.summaries[0]
        return self.pace if first.likelihoods is None else first.throughput


def group_repeats(summaries: Sequence[RunSummary]) -> tuple[RepeatGroup, ...]:
    """Summaries by configuration, in order of first appearance; of two runs with one number the later one counts."""
    groups: dict[str, dict[int, RunSummary]] = {}
    for summary in summaries:
        groups.setdefault(configuration(summary.run), {})[summary.run["repeat"]] = summary
    return tuple(_group([found[number] for number in sorted(found)]) for found in groups.values())


def repeats_of(run: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those of `runs` that are of the configuration and command of `run`, itself included."""
    wanted = configuration(run)
    # Spelling out a configuration takes long where many runs are stored, and the command alone decides mostly.
    return [other for other in runs if other["invocation"] == run["invocation"] and configuration(other) == wanted]


def repeated_pace(summaries: Sequence[RunSummary]) -> Figure:
    """Answered tokens, or requests scored, over seconds of all repeats together, with an interval if there are enough."""
    first = summaries[0].pace
    if len(summaries) == 1:
        return first
    return repeated_rate(summaries, lambda summary: summary.done_work, first.unit)


def repeated_rate(summaries: Sequence[RunSummary], work: Callable[[RunSummary], int], unit: str) -> Figure:
    """Work over seconds of all repeats together, with an interval over repeats if there are enough."""
    batches = [Batch(work(s), seconds) for s in summaries if (seconds := s.makespan_seconds.value)]
    if not batches:
        return Figure(None, unit, "measured", reason="no time was measured")
    found = throughput_interval([[b] for b in batches], generator=np.random.default_rng(SEED))
    return _figure(found.ratio, found.low, found.high, unit, "measured", len(batches))


def paired_repeats(ours: Sequence[RunSummary], theirs: Sequence[RunSummary]) -> list[tuple[RunSummary, RunSummary]]:
    """The repeats of two configurations that have the same number, and so were interleaved."""
    by_number = {summary.run["repeat"]: summary for summary in theirs}
    return [(summary, by_number[summary.run["repeat"]]) for summary in ours if summary.run["repeat"] in by_number]


def repeated_speed(ours: Sequence[RunSummary], theirs: Sequence[RunSummary]) -> Figure | None:
    """Speed of one configuration over another, repeat by repeat; None where fewer than two repeats can be paired."""
    return _over_repeats(ours, theirs, lambda s: (s.done_work, s.makespan_seconds.value))


def repeated_time(ours: Sequence[RunSummary], theirs: Sequence[RunSummary]) -> Figure | None:
    """Seconds a request of the second configuration over those of the first, as `repeated_speed` pairs them."""
    return _over_repeats(ours, theirs, lambda s: (s.answered, sum(share.seconds for share in s.seconds)))


def _over_repeats(
    ours: Sequence[RunSummary],
    theirs: Sequence[RunSummary],
    amounts: Callable[[RunSummary], tuple[int, float | None]],
) -> Figure | None:
    """A ratio of rates of work over time; `amounts` gives the work and the seconds of one run."""
    found = [tuple(map(amounts, pair)) for pair in paired_repeats(ours, theirs)]
    batches = [[Batch(work, seconds or 0.0) for work, seconds in pair] for pair in found if all(map(all, pair))]
    if len(batches) < 2:
        return None
    ratio = speedup_interval(
        *([[pair[side]] for pair in batches] for side in (0, 1)), generator=np.random.default_rng(SEED)
    )
    return _figure(ratio.ratio, ratio.low, ratio.high, "x", "derived", len(batches))


def configuration(run: Mapping[str, Any], apart: Sequence[str] = ()) -> str:
    """What repeats of one configuration share, as one text. apart: columns that may differ."""
    facts = [run["manifest"].get(name) for name in _SAME_FACTS]
    return json.dumps(
        [*(run.get(name) for name in _SAME if name not in apart), run["settings"], facts], sort_keys=True, default=str
    )


def _group(summaries: Sequence[RunSummary]) -> RepeatGroup:
    speeds = [value for summary in summaries if (value := summary.pace.value) is not None]
    return RepeatGroup(tuple(summaries), repeated_pace(summaries), min(speeds, default=None), max(speeds, default=None))


def _figure(value: float, low: float | None, high: float | None, unit: str, status: str, repeats: int) -> Figure:
    if low is None or high is None:
        reason = f"interval unknown: {repeats} of at least {MINIMUM_CLUSTERS} repeats"
        return Figure(value, unit, status, reason=reason)  # type: ignore[arg-type]
    return Figure(value, unit, status, low, high, basis=f"{repeats} repeats")  # type: ignore[arg-type]
