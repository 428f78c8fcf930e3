"""Repeats of one configuration: how its speed varies from run to run.

Requests of one run share a machine's mood, so an interval over them says nothing about another day's run. With five
repeats or more the repeats themselves are drawn; with fewer, the variation between runs is unknown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dllm_audit.analysis.figures import Figure
from dllm_audit.analysis.summary import SEED, RunSummary, summarise
from dllm_audit.statistics.throughput import MINIMUM_CLUSTERS, Batch, speedup_interval, throughput_interval

if TYPE_CHECKING:
    from dllm_audit.store.database import Store

_SAME = ("invocation", "backend", "provenance", "model", "task", "role", "concurrency", "fidelity")

#: Facts of a manifest that repeats share too: a run on other prompts, or in another number format, is no repeat.
_SAME_FACTS = ("model", "engine", "prompts")


@dataclass(frozen=True)
class RepeatGroup:
    """Runs that differ only in their number, in that order. `throughput` is over all of them together.

    slowest, fastest: tokens per second of single runs; None where none was timed.
    """

    summaries: tuple[RunSummary, ...]
    throughput: Figure
    slowest: float | None
    fastest: float | None


def group_repeats(summaries: Sequence[RunSummary]) -> tuple[RepeatGroup, ...]:
    """Summaries by configuration, in order of first appearance; of two runs with one number the later one counts."""
    groups: dict[str, dict[int, RunSummary]] = {}
    for summary in summaries:
        groups.setdefault(_configuration(summary.run), {})[summary.run["repeat"]] = summary
    return tuple(_group([found[number] for number in sorted(found)]) for found in groups.values())


def repeats_of(store: Store, summary: RunSummary) -> tuple[RunSummary, ...]:
    """Every stored repeat of a run's configuration from the same command, the run itself included."""
    wanted = _configuration(summary.run)
    ids = [run["run_id"] for run in store.runs() if _configuration(run) == wanted]
    return tuple(summary if run_id == summary.run_id else summarise(store, run_id) for run_id in ids)


def repeated_throughput(summaries: Sequence[RunSummary]) -> Figure:
    """Answered tokens over seconds of all repeats together, with an interval over repeats if there are enough."""
    if len(summaries) == 1:
        return summaries[0].throughput
    batches = _batches(summaries)
    if not batches:
        return Figure(None, "tokens/s", "measured", reason="no time was measured")
    found = throughput_interval([[b] for b in batches], generator=np.random.default_rng(SEED))
    return _figure(found.ratio, found.low, found.high, "tokens/s", "measured", len(batches))


def repeated_speed(ours: Sequence[RunSummary], theirs: Sequence[RunSummary]) -> Figure | None:
    """Speed of one configuration over another, repeat by repeat; None where fewer than two repeats can be paired."""
    by_number = {summary.run["repeat"]: summary for summary in theirs}
    pairs = [(summary, by_number[summary.run["repeat"]]) for summary in ours if summary.run["repeat"] in by_number]
    timed = [pair for pair in pairs if all(s.makespan_seconds.value and s.answered_tokens for s in pair)]
    if len(timed) < 2:
        return None
    sides = [[[batch] for batch in _batches([pair[side] for pair in timed])] for side in (0, 1)]
    found = speedup_interval(*sides, generator=np.random.default_rng(SEED))
    return _figure(found.ratio, found.low, found.high, "x", "derived", len(timed))


def _configuration(run: Mapping[str, Any]) -> str:
    """What repeats of one configuration share, as one text."""
    facts = [run["manifest"].get(name) for name in _SAME_FACTS]
    return json.dumps([*(run[name] for name in _SAME), run["settings"], facts], sort_keys=True, default=str)


def _group(summaries: Sequence[RunSummary]) -> RepeatGroup:
    speeds = [value for summary in summaries if (value := summary.throughput.value) is not None]
    return RepeatGroup(
        tuple(summaries), repeated_throughput(summaries), min(speeds, default=None), max(speeds, default=None)
    )


def _batches(summaries: Sequence[RunSummary]) -> list[Batch]:
    return [Batch(s.answered_tokens, seconds) for s in summaries if (seconds := s.makespan_seconds.value)]


def _figure(value: float, low: float | None, high: float | None, unit: str, status: str, repeats: int) -> Figure:
    if low is None or high is None:
        reason = f"interval unknown: {repeats} of at least {MINIMUM_CLUSTERS} repeats"
        return Figure(value, unit, status, reason=reason)  # type: ignore[arg-type]
    return Figure(value, unit, status, low, high, basis=f"{repeats} repeats")  # type: ignore[arg-type]
