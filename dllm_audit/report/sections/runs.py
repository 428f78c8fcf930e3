"""The runs of the report, numbered, with their repeats; which runs a report shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dllm_audit.analysis.asked import is_tuning
from dllm_audit.analysis.figures import Figure
from dllm_audit.analysis.labels import label
from dllm_audit.analysis.repeats import RepeatGroup, group_repeats
from dllm_audit.analysis.summary import Metric, RunSummary, summarise

if TYPE_CHECKING:
    from dllm_audit.store.database import Store


@dataclass(frozen=True)
class RunRow:
    """One run with its number in the report."""

    number: int
    label: str
    summary: RunSummary
    group: RepeatGroup

    @property
    def model(self) -> str:
        return str(self.summary.run["model"])

    @property
    def leads(self) -> bool:
        """Whether this run stands for its repeats in charts, comparisons and sentences."""
        return self.group.summaries[0] is self.summary

    @property
    def doubt(self) -> float:
        """How far off the times may be, as a factor: the worst of all repeats for the run that leads them."""
        return max(s.doubt for s in (self.group.summaries if self.leads else (self.summary,)))

    @property
    def doubted(self) -> str:
        """Why, after the name of the run."""
        return max(self.group.summaries if self.leads else (self.summary,), key=lambda s: s.doubt).doubted

    @property
    def pace(self) -> Figure:
        """Speed of all repeats together for the run that leads them, else its own: in tokens/s, or requests/s."""
        return self.group.pace if self.leads else self.summary.pace


def newest_runs(runs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The newest run of each content, role and repeat: an older one of the same was superseded.

    What only helped to choose a setting is no result. It stays where other runs of its command stay: they were interleaved with it, and nothing compares better with them.
    """
    newest: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    runs = [run for run in runs if not is_tuning(run)]
    for run in runs:  # oldest first
        key = (run["content_key"], run["role"], run["repeat"])
        # A run that was broken off does not replace one that was finished.
        if key not in newest or run["status"] == "complete" or newest[key]["status"] != "complete":
            newest[key] = run
    kept = {run["run_id"] for run in newest.values()}
    commands = {run["invocation"] for run in newest.values()}
    return [
        run for run in runs if run["run_id"] in kept or (run["invocation"] in commands and run["role"] != "candidate")
    ]


def run_rows(store: Store, runs: Sequence[Mapping[str, Any]]) -> list[RunRow]:
    by_task = list(dict.fromkeys(run["task"] for run in runs))
    ordered = sorted(runs, key=lambda run: (by_task.index(run["task"]), run["role"] == "control"))
    summaries = [summarise(store, run["run_id"]) for run in ordered]
    groups = {s.run_id: group for group in group_repeats(summaries) for s in group.summaries}
    # Of two runs with the same number only the later one is a repeat; the other stands for itself.
    groups |= {s.run_id: group_repeats([s])[0] for s in summaries if s.run_id not in groups}
    return [RunRow(number, label(s.run), s, groups[s.run_id]) for number, s in enumerate(summaries, 1)]


def same_metric(summary: RunSummary, metric: Metric | None) -> Metric | None:
    """The metric of this run with the name and filter of `metric`."""
    if metric is None:
        return None
    return next((m for m in summary.metrics if (m.name, m.filter) == (metric.name, metric.filter)), None)
