"""Two changes switched on and off in four runs: what each does to the speed, whether they multiply, and what quality is left.

"Caching gives 2x and thresholding gives 3x, so together 6x" is a claim about an interaction. `run --factorial` makes the four
runs; which of them has what switched on stands in their manifests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from dllm_audit.analysis.figures import Figure
from dllm_audit.analysis.labels import label
from dllm_audit.analysis.pairing import (
    SINGLE_RUN_NOISE,
    document_batches,
    requests_by_document,
    scaled_to_makespan,
    with_doubt,
)
from dllm_audit.analysis.repeats import RepeatGroup, documents_of
from dllm_audit.analysis.rows import stands_alone
from dllm_audit.analysis.summary import Metric, RunSummary
from dllm_audit.statistics.factorial import TOLERANCE, FactorialEffects, Together, factorial_effects, how_together
from dllm_audit.statistics.throughput import MINIMUM_CLUSTERS, Batch, RatioInterval, Repeat

if TYPE_CHECKING:
    from dllm_audit.analysis.pairing import Comparisons
    from dllm_audit.store.database import Store

#: Which of (first, second) is switched on, in the order of cells.
LEVELS = ((False, False), (True, False), (False, True), (True, True))

_SEED = 20251129

_SAID: Mapping[Together, str] = {
    "multiply": "{} and {} multiply",
    "less than multiply": "{} and {} less than multiply",
    "more than multiply": "{} and {} more than multiply",
    "open": "Whether {} and {} multiply is undecided",
    "unknown": "Whether {} and {} multiply is undecided",
}


@dataclass(frozen=True)
class FactorialCell:
    """One of the four configurations: which factors are on, its first run, and that with its repeats."""

    on: tuple[bool, bool]
    summary: RunSummary
    group: RepeatGroup

    @property
    def name(self) -> str:
        """Backend and settings in a few words."""
        return label({**self.summary.run, "repeat": 0})

    @property
    def speed(self) -> Figure:
        """Answered tokens per second over all repeats."""
        return self.group.throughput

    @property
    def quality(self) -> Metric | None:
        """The metric that decides, of the first run."""
        return self.summary.primary_metric


@dataclass(frozen=True)
class Factorial:
    """A 2x2 of runs. factors: names of the two. cells: neither, the first alone, the second alone, both.

    first, second: factor on the speed of switching each on, the geometric mean over the other being off and on.
    interaction: speed with both x with neither / (with the first x with the second): 1 where they multiply.
    together: what that says; "open" and "unknown" are undecided.
    """

    task: str
    concurrency: int
    factors: tuple[str, str]
    cells: tuple[FactorialCell, ...]
    first: Figure
    second: Figure
    interaction: Figure
    together: Together
    caveats: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """The result in words, intervals included."""
        first, second = self.factors
        parts = [f"{name} {_said(figure)}" for name, figure in ((first, self.first), (second, self.second))]
        said = _SAID[self.together].format(first, second)
        text = f"On speed: {'; '.join(parts)}. {said[0].upper()}{said[1:]}"
        figure = self.interaction
        if figure.value is None:
            return f"{text} ({figure.reason})."
        return f"{text}: together {_said(figure)} of what multiplying would give."

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "task": self.task,
            "concurrency": self.concurrency,
            "factors": list(self.factors),
            "cells": [
                {
                    **dict(zip(self.factors, cell.on, strict=True)),
                    "runs": [summary.run_id for summary in cell.group.summaries],
                    "configuration": cell.name,
                    "tokens_per_second": vars(cell.speed),
                    "tokens_per_forward": cell.summary.tokens_per_forward.value,
                    "metric": None if cell.quality is None else cell.quality.label,
                    "quality": None if cell.quality is None else vars(cell.quality.figure),
                }
                for cell in self.cells
            ],
            "effects": dict(zip(self.factors, (vars(self.first), vars(self.second)), strict=True)),
            "interaction": vars(self.interaction),
            "together": self.together,
            "sentence": self.sentence,
            "caveats": list(self.caveats),
        }


def factorials_of(store: Store, comparisons: Comparisons, runs: Iterable[Mapping[str, Any]]) -> tuple[Factorial, ...]:
    """The complete 2x2 designs among `runs`: those of one command, task and load whose manifests say what was switched on."""
    designs: dict[tuple[Any, ...], dict[tuple[bool, bool], Mapping[str, Any]]] = {}
    for run in runs:
        levels = levels_of(run)
        if levels is not None:
            names, on = tuple(levels), tuple(levels.values())
            conditions = tuple(run.get(name) for name in ("concurrency", "load", "arrival_rate"))
            cells = designs.setdefault((run["invocation"], run["task"], conditions, names), {})
            if on not in cells or run["repeat"] < cells[on]["repeat"]:
                cells[on] = run  # type: ignore[index]
    return tuple(
        _factorial(store, comparisons, names, cells)
        for (_, _, _, names), cells in designs.items()
        if len(cells) == len(LEVELS)
    )


def levels_of(run: Mapping[str, Any]) -> dict[str, bool] | None:
    """Which of the two factors of a factorial a run has switched on; None for a run of none."""
    found = run["manifest"].get("factorial")
    if not isinstance(found, Mapping) or len(found) != 2 or not all(isinstance(on, bool) for on in found.values()):
        return None
    return {str(name): on for name, on in found.items()}


def _factorial(
    store: Store,
    comparisons: Comparisons,
    factors: tuple[str, str],
    runs: Mapping[tuple[bool, bool], Mapping[str, Any]],
) -> Factorial:
    cells = tuple(
        FactorialCell(on, comparisons.summary(str(runs[on]["run_id"])), comparisons.repeats(str(runs[on]["run_id"])))
        for on in LEVELS
    )
    timed = [summary for cell in cells for summary in cell.group.summaries]
    (first, second, interaction), doubts = _effects(store, cells), with_doubt(_NO_SPEED, timed)[1]
    first, second, interaction = (with_doubt(figure, timed)[0] for figure in (first, second, interaction))
    run = cells[0].summary.run
    return Factorial(
        task=str(run["task"]),
        concurrency=int(run["concurrency"]),
        factors=factors,
        cells=cells,
        first=first,
        second=second,
        interaction=interaction,
        together=how_together(interaction.low, interaction.high, TOLERANCE),
        caveats=tuple(doubts),
    )


_NO_SPEED = Figure(None, "x", "derived", reason="a cell answered no tokens, or took no time")


def _effects(store: Store, cells: Sequence[FactorialCell]) -> tuple[Figure, Figure, Figure]:
    """Both effects and the interaction: over repeats where there are enough, and their documents where requests stand alone;
    else over the documents of the first runs.
    """
    timed = [
        {s.run["repeat"]: s for s in cell.group.summaries if s.answered_tokens and s.makespan_seconds.value}
        for cell in cells
    ]
    common = sorted(set.intersection(*(set(runs) for runs in timed)))
    generator = np.random.default_rng(_SEED)
    if len(common) < MINIMUM_CLUSTERS and all(stands_alone(cell.summary.run) for cell in cells):
        documents = _documents(store, cells)
        if documents is None:
            return _NO_SPEED, _NO_SPEED, _NO_SPEED
        found = factorial_effects(*([side] for side in documents), level="batch", generator=generator)
        return _figures(found, f"{len(documents[0])} documents, one run each", "documents", True)
    if not common:
        return _NO_SPEED, _NO_SPEED, _NO_SPEED
    repeated = [[runs[number] for number in common] for runs in timed]
    by_document = documents_of(repeated)
    if by_document is not None:
        found = factorial_effects(*by_document, level="crossed", generator=generator)
        basis = f"{len(common)} repeats of {len(repeated[0][0].documents)} documents"
        return _figures(found, basis, "repeats", False)
    found = factorial_effects(*([_whole(run) for run in runs] for runs in repeated), generator=generator)
    return _figures(found, f"{len(common)} repeats", "repeats", False)


def _whole(run: RunSummary) -> Repeat:
    return [Batch(run.answered_tokens, run.makespan_seconds.value or 0.0)]


def _documents(store: Store, cells: Sequence[FactorialCell]) -> list[list[Batch]] | None:
    """One batch for each document that the first run of every cell answered; None where one answered nothing."""
    rows = [requests_by_document(store.requests(cell.summary.run_id)) for cell in cells]
    common = [[of_cell[key] for of_cell in rows] for key in rows[0] if all(key in of_cell for of_cell in rows)]
    try:
        sides = document_batches(common, "answered_tokens")
    except ValueError:
        return None
    return [scaled_to_makespan(side, cell.summary) for side, cell in zip(sides, cells, strict=True)]


def _figures(found: FactorialEffects, basis: str, what: str, one_run_each: bool) -> tuple[Figure, Figure, Figure]:
    """one_run_each: the intervals do not hold what runs of one configuration differ by, so they are widened by that."""
    # A ratio of two runs differs by SINGLE_RUN_NOISE; the variance of a contrast is the sum of its squared weights.
    main, interaction = ((SINGLE_RUN_NOISE ** sqrt(squares / 2) if one_run_each else 1.0) for squares in (1, 4))
    return (
        _figure(found.first, basis, what, main),
        _figure(found.second, basis, what, main),
        _figure(found.interaction, basis, what, interaction),
    )


def _figure(found: RatioInterval, basis: str, what: str, widened: float) -> Figure:
    if found.low is None or found.high is None:
        reason = f"interval unknown: {found.clusters} of at least {MINIMUM_CLUSTERS} {what}"
        return Figure(found.ratio, "x", "derived", reason=reason)
    if widened > 1:
        basis += f", widened by {widened:.2f}x for what runs of one configuration differ by"
    return Figure(found.ratio, "x", "derived", found.low / widened, found.high * widened, basis=basis)


def _said(figure: Figure) -> str:
    if figure.value is None:
        return "unknown"
    ends = f"{figure.low:.2f} to {figure.high:.2f}" if figure.has_interval else figure.reason
    return f"{figure.value:.2f}x ({ends})"
