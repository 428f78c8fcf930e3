"""What a speed is worth: how strong its baseline is, where it comes from, at which concurrency it ends, and whether changes multiply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

from dllm_audit.analysis.baseline import Strength, strength_of
from dllm_audit.analysis.bounds import Decomposition
from dllm_audit.analysis.factorials import Factorial, factorials_of
from dllm_audit.analysis.references import AGAINST_AR
from dllm_audit.analysis.sweeps import Sweep, sweeps_of
from dllm_audit.report.charts import Chart, SweepLine, speed_by_concurrency
from dllm_audit.report.formats import number
from dllm_audit.report.sections.comparisons import PairRow
from dllm_audit.report.sections.runs import RunRow

if TYPE_CHECKING:
    from dllm_audit.analysis.pairing import Comparisons
    from dllm_audit.store.database import Store


@dataclass(frozen=True)
class StrengthRow:
    """An autoregressive run and how strong it is as a baseline."""

    row: RunRow
    strength: Strength


@dataclass(frozen=True)
class FactorCell:
    """One factor of a speed: the values of both sides, and their ratio as it is printed."""

    name: str
    candidate: float
    baseline: float
    ratio: str


@dataclass(frozen=True)
class DecompositionRow:
    """A speed against the autoregressive model, as a product. ratio: as printed; the printed factors multiply to it."""

    candidate: RunRow
    baseline: RunRow
    decomposition: Decomposition
    factors: tuple[FactorCell, ...]
    ratio: str


@dataclass(frozen=True)
class SweepRow:
    """A sweep over concurrency with its chart."""

    sweep: Sweep
    chart: Chart


@dataclass(frozen=True)
class OriginSection:
    """Everything of one task that says what its speeds are worth; each part is empty where no run shows it."""

    strengths: tuple[StrengthRow, ...]
    decompositions: tuple[DecompositionRow, ...]
    sweeps: tuple[SweepRow, ...]
    factorials: tuple[Factorial, ...]

    @property
    def is_empty(self) -> bool:
        return not (self.strengths or self.decompositions or self.sweeps or self.factorials)


def origin_section(
    store: Store, comparisons: Comparisons, rows: Sequence[RunRow], pairs: Sequence[PairRow]
) -> OriginSection:
    """rows: runs of one task, of repeats the first, controls left out. pairs: their comparisons."""
    against_ar = [pair for pair in pairs if pair.against == AGAINST_AR]
    strengths = ((row, strength_of(row.summary)) for row in rows)
    sweeps = sweeps_of([pair.comparison for pair in against_ar], comparisons)
    return OriginSection(
        strengths=tuple(StrengthRow(row, found) for row, found in strengths if found is not None),
        decompositions=tuple(
            _decomposition_row(pair) for pair in against_ar if pair.comparison.speed.value is not None
        ),
        sweeps=tuple(SweepRow(sweep, _sweep_chart(sweep)) for sweep in sweeps),
        factorials=factorials_of(store, comparisons, [row.summary.run for row in rows]),
    )


def _decomposition_row(pair: PairRow) -> DecompositionRow:
    found = pair.comparison.decomposition
    factors = tuple(
        FactorCell(factor.name, factor.candidate, factor.baseline, text)
        for factor, text in zip(found.factors, found.texts(number), strict=True)
    )
    ratio = "–" if found.ratio is None else number(found.ratio)
    return DecompositionRow(pair.candidate, pair.baseline, found, factors, ratio)


def _sweep_chart(sweep: Sweep) -> Chart:
    lines = [
        SweepLine(name, tuple((p.concurrency, figure.value, figure.low, figure.high) for p, figure in points))
        for name, points in (
            (sweep.candidate, [(p, p.candidate) for p in sweep.points if _known(p.candidate.value)]),
            (sweep.baseline, [(p, p.baseline) for p in sweep.points if _known(p.baseline.value)]),
        )
    ]
    return speed_by_concurrency(lines)


def _known(value: float | None) -> bool:
    return value is not None and isfinite(value)
