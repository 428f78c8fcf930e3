"""Runs against their baselines, and the same configuration against itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dllm_audit.analysis.figures import Figure
from dllm_audit.analysis.manifests import difference_value
from dllm_audit.analysis.pairing import Comparison, Comparisons, noise_words
from dllm_audit.analysis.plain import fact_words
from dllm_audit.analysis.references import REFERENCES, control_of
from dllm_audit.report.sections.runs import RunRow


@dataclass(frozen=True)
class PairRow:
    """A comparison and what the baseline stands for."""

    candidate: RunRow
    baseline: RunRow
    against: str
    comparison: Comparison
    differences: tuple[DifferenceRow, ...]

    @property
    def caveats(self) -> tuple[str, ...]:
        """The caveats that its verdict does not say already."""
        verdict = self.comparison.verdict.casefold()
        return tuple(text for text in self.comparison.caveats if text.rstrip(".").casefold() not in verdict)


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
    def meaning(self) -> str:
        """What the control says of every other ratio; empty where it has no ratio."""
        noise = noise_words(self.speed, self.speed.value) if self.speed.value is not None else ""
        return f"The machine alone makes such a difference: in that command, {noise}." if noise else ""

    @property
    def factor(self) -> float:
        """How far from 1 the machine makes a difference by itself, as a factor of at least 1."""
        value = self.speed.value
        return max(value, 1 / value) if value else 1.0


def pair_rows(
    comparisons: Comparisons, rows: Sequence[RunRow], all_rows: Sequence[RunRow], margin: float | None
) -> tuple[PairRow, ...]:
    leading = [row.summary.run for row in rows]
    by_id = {row.summary.run_id: row for row in all_rows}
    found = []
    for row in rows:
        run = row.summary.run
        for against, find in REFERENCES.items():
            reference = find(run, leading)
            if reference is None or reference["run_id"] not in by_id:
                continue
            comparison = comparisons.compare(row.summary.run_id, reference["run_id"], margin)
            found.append(PairRow(row, by_id[reference["run_id"]], against, comparison, _differences(comparison)))
    return tuple(found)


def control_rows(comparisons: Comparisons, rows: Sequence[RunRow]) -> tuple[ControlRow, ...]:
    runs = [row.summary.run for row in rows]
    by_id = {row.summary.run_id: row for row in rows}
    found = []
    for row in rows:
        if row.summary.run["role"] != "control" or not row.leads:
            continue
        pair = control_of(row.summary.run, [r for r in runs if r["role"] != "control"] + [row.summary.run])
        if pair:
            twin = by_id[pair[1]["run_id"]]
            comparison = comparisons.compare(row.summary.run_id, twin.summary.run_id)
            found.append(ControlRow(row, twin, comparison.documents, comparison.speed))
    return tuple(found)


def _differences(comparison: Comparison) -> tuple[DifferenceRow, ...]:
    manifests = comparison.manifests
    return tuple(
        DifferenceRow(
            role,
            fact_words(d.name).replace("_", " "),
            difference_value(d, d.candidate),
            difference_value(d, d.baseline),
        )
        for role, found in (
            ("treatment", manifests.treatment),
            ("nuisance", manifests.nuisance),
            ("drift", manifests.drift),
        )
        for d in found
    )
