"""Repeats of one configuration: how its speed varies from run to run.

Requests of one run share a machine's mood, so an interval over them says nothing about another day's run. With five
repeats or more the repeats themselves are drawn; with fewer, the variation between runs is unknown. Repeats have the same
documents, so drawing them says nothing of others: where requests stand alone, documents are drawn too, across all repeats.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dllm_audit.analysis.figures import Figure, Status
from dllm_audit.analysis.summary import SEED, RunSummary, draws_for
from dllm_audit.statistics.throughput import (
    MINIMUM_CLUSTERS,
    Batch,
    RatioInterval,
    Repeat,
    speedup_interval,
    throughput_interval,
)

_SAME = (
    "invocation", "backend", "provenance", "model", "task", "role", "concurrency", "load", "arrival_rate", "fidelity",
)  # fmt: skip

#: Facts of a manifest that repeats share too: a run on other prompts, or in another number format, is no repeat.
_SAME_FACTS = ("model", "engine", "prompts")


Counted = Literal["work", "characters", "documents"]
"""What a rate counts of a document: what the pace of its run does, answered characters, or the document as one."""


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
    timed = [summary for summary in summaries if summary.makespan_seconds.value]
    sides = documents_of([timed])
    if sides is None:
        return repeated_rate(summaries, lambda summary: summary.done_work, first.unit)
    found = throughput_interval(sides[0], level="crossed", draws=draws_for(len(sides[0][0])), generator=_generator())
    return _figure(found, first.unit, "measured", len(timed), len(timed[0].documents))


def repeated_rate(summaries: Sequence[RunSummary], work: Callable[[RunSummary], int], unit: str) -> Figure:
    """Work over seconds of all repeats together, with an interval over repeats if there are enough."""
    batches = [Batch(work(s), seconds) for s in summaries if (seconds := s.makespan_seconds.value)]
    if not batches:
        return Figure(None, unit, "measured", reason="no time was measured")
    found = throughput_interval([[b] for b in batches], generator=_generator())
    return _figure(found, unit, "measured", len(batches))


def documents_of(sides: Sequence[Sequence[RunSummary]], counted: Counted = "work") -> list[list[Repeat]] | None:
    """For each side its repeats, in each of them one batch for every document, at the same place in all.

    sides: runs that took time. counted: of a document; "documents" count 1 in their own seconds, for the others the time
    between requests is shared out. None where fewer than five repeats or documents can be drawn: requests shared forwards, or
    repeats have different documents.
    """
    from dllm_audit.analysis.pairing import document_batches

    runs = [run for side in sides for run in side]
    known = list(runs[0].documents) if runs else []
    if min([len(known), *map(len, sides)]) < MINIMUM_CLUSTERS or any(set(r.documents) != set(known) for r in runs):
        return None
    rows = [[_row(run, key, counted) for run in runs] for key in known]
    try:
        batches = iter(document_batches(rows, "work"))
    except ValueError:
        return None
    found: list[list[Repeat]] = [[next(batches) for _ in side] for side in sides]
    return found if len(found[0][0]) >= MINIMUM_CLUSTERS else None


def _row(run: RunSummary, key: Any, counted: Counted) -> dict[str, float]:
    """What a document took in one run."""
    share = run.documents[key]
    if counted == "documents":
        return {"work": 1.0, "total_seconds": share.seconds}
    total = sum(each.seconds for each in run.documents.values())
    scale = (run.makespan_seconds.value or 0.0) / total if total else 0.0
    return {"work": getattr(share, counted), "total_seconds": share.seconds * scale}


def _generator() -> np.random.Generator:
    return np.random.default_rng(SEED)


def paired_repeats(ours: Sequence[RunSummary], theirs: Sequence[RunSummary]) -> list[tuple[RunSummary, RunSummary]]:
    """The repeats of two configurations that have the same number, and so were interleaved."""
    by_number = {summary.run["repeat"]: summary for summary in theirs}
    return [(summary, by_number[summary.run["repeat"]]) for summary in ours if summary.run["repeat"] in by_number]


def repeated_speed(ours: Sequence[RunSummary], theirs: Sequence[RunSummary]) -> Figure | None:
    """Speed of one configuration over another, repeat by repeat; None where fewer than two repeats can be paired."""
    return _over_repeats(ours, theirs, lambda s: (s.done_work, s.makespan_seconds.value), "work")


def repeated_characters(ours: Sequence[RunSummary], theirs: Sequence[RunSummary]) -> Figure | None:
    """Answered characters per second of one configuration over another, as `repeated_speed` pairs them."""
    return _over_repeats(ours, theirs, lambda s: (s.answered_characters, s.makespan_seconds.value), "characters")


def repeated_time(ours: Sequence[RunSummary], theirs: Sequence[RunSummary]) -> Figure | None:
    """Seconds a request of the second configuration over those of the first, as `repeated_speed` pairs them."""
    return _over_repeats(ours, theirs, lambda s: (s.answered, sum(share.seconds for share in s.seconds)), "documents")


def _over_repeats(
    ours: Sequence[RunSummary],
    theirs: Sequence[RunSummary],
    amounts: Callable[[RunSummary], tuple[int, float | None]],
    counted: Counted,
) -> Figure | None:
    """A ratio of rates of work over time; `amounts` gives the work and the seconds of one run. See `documents_of`."""
    pairs = [pair for pair in paired_repeats(ours, theirs) if all(map(all, map(amounts, pair)))]
    if len(pairs) < 2:
        return None
    sides: list[list[Repeat]] = [[[_batch(*amounts(pair[side]))] for pair in pairs] for side in (0, 1)]
    by_document = documents_of([[pair[side] for pair in pairs] for side in (0, 1)], counted)
    if by_document is None:
        return _figure(speedup_interval(*sides, generator=_generator()), "x", "derived", len(pairs))
    draws = draws_for(len(by_document[0][0]))
    ratio = speedup_interval(*by_document, level="crossed", draws=draws, generator=_generator())
    return _figure(ratio, "x", "derived", len(pairs), len(pairs[0][0].documents))


def _batch(work: int, seconds: float | None) -> Batch:
    return Batch(work, seconds or 0.0)


def configuration(run: Mapping[str, Any], apart: Sequence[str] = ()) -> str:
    """What repeats of one configuration share, as one text. apart: columns that may differ."""
    facts = [run["manifest"].get(name) for name in _SAME_FACTS]
    return json.dumps(
        [*(run.get(name) for name in _SAME if name not in apart), run["settings"], facts], sort_keys=True, default=str
    )


def _group(summaries: Sequence[RunSummary]) -> RepeatGroup:
    speeds = [value for summary in summaries if (value := summary.pace.value) is not None]
    return RepeatGroup(tuple(summaries), repeated_pace(summaries), min(speeds, default=None), max(speeds, default=None))


def _figure(found: RatioInterval, unit: str, status: Status, repeats: int, documents: int = 0) -> Figure:
    """documents: how many were drawn beside the repeats; 0 where they were not."""
    if found.low is None or found.high is None:
        reason = f"interval unknown: {repeats} of at least {MINIMUM_CLUSTERS} repeats"
        return Figure(found.ratio, unit, status, reason=reason)
    basis = f"{repeats} repeats" + (f" of {documents} documents" if documents else "")
    return Figure(found.ratio, unit, status, found.low, found.high, basis=basis)
