"""Runs against their baselines, and the same configuration against itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dllm_audit.analysis.figures import Figure
from dllm_audit.analysis.manifests import difference_value
from dllm_audit.analysis.pairing import DEFAULT_MARGIN, Comparison, compare_rows
from dllm_audit.analysis.references import autoregressive_reference, control_of, one_token_reference
from dllm_audit.report.sections.runs import RunRow

if TYPE_CHECKING:
    from dllm_audit.store.database import Store

#: What a baseline stands for.
AGAINST_AR = "the autoregressive model"
AGAINST_ONE_TOKEN = "one token per step, same model"


@dataclass(frozen=True)
class PairRow:
    """A comparison and what the baseline stands for."""

    candidate: RunRow
    baseline: RunRow
    against: str
    comparison: Comparison
    differences: tuple[DifferenceRow, ...]


@dataclass(frozen=True)
class DifferenceRow:
    """One difference of two manifests in words; `role` is treatment, nuisance or drift."""

    role: str
    name: str
    candidate: str
    baseline: str


@dataclass(frozen=True)
class ControlRow:
    """The same configuration against itself: the difference that the machine makes up."""

    control: RunRow
    twin: RunRow
    documents: int
    speed: Figure

    @property
    def factor(self) -> float:
        """How far from 1 the machine makes a difference by itself, as a factor of at least 1."""
        value = self.speed.value
        return max(value, 1 / value) if value else 1.0


def pair_rows(store: Store, rows: Sequence[RunRow], all_rows: Sequence[RunRow], margin: float) -> tuple[PairRow, ...]:
    runs = [row.summary.run for row in all_rows]
    leading = [row.summary.run for row in rows]
    by_id = {row.summary.run_id: row for row in all_rows}
    noise: dict[tuple[str, str], float | None] = {}
    found = []
    for row in rows:
        run = row.summary.run
        references = (
            (AGAINST_AR, autoregressive_reference(run, leading)),
            (AGAINST_ONE_TOKEN, one_token_reference(run, leading)),
        )
        for against, reference in references:
            if reference is None or reference["run_id"] not in by_id:
                continue
            baseline = by_id[reference["run_id"]]
            comparison = _compare(store, row, baseline, margin, _noise(store, run, runs, by_id, noise))
            found.append(PairRow(row, baseline, against, comparison, _differences(comparison)))
    return tuple(found)


def control_rows(store: Store, rows: Sequence[RunRow]) -> tuple[ControlRow, ...]:
    runs = [row.summary.run for row in rows]
    by_id = {row.summary.run_id: row for row in rows}
    found = []
    for row in rows:
        if row.summary.run["role"] != "control" or not row.leads:
            continue
        pair = control_of(row.summary.run, [r for r in runs if r["role"] != "control"] + [row.summary.run])
        if pair:
            twin = by_id[pair[1]["run_id"]]
            comparison = _compare(store, row, twin, DEFAULT_MARGIN, None)
            found.append(ControlRow(row, twin, comparison.documents, comparison.speed))
    return tuple(found)


def _compare(store: Store, ours: RunRow, theirs: RunRow, margin: float, control: float | None) -> Comparison:
    ids = ours.summary.run_id, theirs.summary.run_id
    return compare_rows(
        ours.summary,
        theirs.summary,
        (store.requests(ids[0]), store.requests(ids[1])),
        (store.answers(ids[0]), store.answers(ids[1])),
        margin,
        control,
        (ours.group.summaries, theirs.group.summaries),
    )


def _noise(
    store: Store,
    run: Mapping[str, Any],
    runs: Sequence[Mapping[str, Any]],
    by_id: Mapping[str, RunRow],
    known: dict[tuple[str, str], float | None],
) -> float | None:
    """Speed of the A/A control that was interleaved with `run`, each worked out once."""
    found = control_of(run, runs)
    if found is None:
        return None
    key = found[0]["run_id"], found[1]["run_id"]
    if key not in known:
        known[key] = _compare(store, by_id[key[0]], by_id[key[1]], DEFAULT_MARGIN, None).speed.value
    return known[key]


def _differences(comparison: Comparison) -> tuple[DifferenceRow, ...]:
    manifests = comparison.manifests
    return tuple(
        DifferenceRow(role, d.name.replace("_", " "), difference_value(d, d.candidate), difference_value(d, d.baseline))
        for role, found in (
            ("treatment", manifests.treatment),
            ("nuisance", manifests.nuisance),
            ("drift", manifests.drift),
        )
        for d in found
    )
