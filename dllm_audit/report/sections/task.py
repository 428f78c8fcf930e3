"""Everything about one task: its runs, charts, comparisons, notes and example."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

from dllm_audit.analysis.pairing import Comparisons
from dllm_audit.analysis.rows import speed_alone
from dllm_audit.analysis.summary import Metric, books_note
from dllm_audit.analysis.templates import TemplateStudy, template_studies
from dllm_audit.records import FORWARD_KINDS, TIME_ITEMS
from dllm_audit.report.charts import Chart, SpeedPoint, TimeBar, speed_and_quality, where_time_goes
from dllm_audit.report.sections.comparisons import ControlRow, PairRow, control_rows, pair_rows
from dllm_audit.report.sections.example import TokenTexts, TraceSection, trace_section
from dllm_audit.report.sections.findings import NO_QUALITY, task_findings
from dllm_audit.report.sections.origin import OriginSection, origin_section
from dllm_audit.report.sections.runs import RunRow, same_metric

if TYPE_CHECKING:
    from dllm_audit.store.database import Store


@dataclass(frozen=True)
class TaskSection:
    """Everything about one task: runs, charts, comparisons, example. `shown`: of repeats only the first."""

    name: str
    runs: tuple[RunRow, ...]
    shown: tuple[RunRow, ...]
    metric: str
    speed_chart: Chart | None
    time_chart: Chart | None
    pairs: tuple[PairRow, ...]
    controls: tuple[ControlRow, ...]
    origin: OriginSection
    templates: tuple[TemplateStudy, ...]
    repeated: tuple[RunRow, ...]
    trace: TraceSection | None
    sentences: tuple[str, ...]
    headline: str
    notes: tuple[NoteRow, ...]
    forward_kinds: tuple[str, ...]
    time_items: tuple[str, ...]

    @property
    def speed_alone(self) -> str:
        """What its runs were given, if they measured speed alone; empty where there is a quality too."""
        alone = speed_alone(self.runs[0].summary.run)
        return f"{alone[0].upper()}{alone[1:]}. {NO_QUALITY}" if alone else ""

    @property
    def queues(self) -> bool:
        """Whether requests of some run queued for a row."""
        return any(row.summary.load.kind != "closed" for row in self.runs)

    @property
    def outside_items(self) -> tuple[str, ...]:
        """What its runs did outside every clock."""
        return tuple(dict.fromkeys(item for row in self.shown for item in row.summary.outside_seconds))

    @property
    def scored(self) -> bool:
        """Whether the task has given answers scored, so that nothing here counts tokens."""
        return all(row.summary.likelihoods is not None for row in self.runs)


@dataclass(frozen=True)
class NoteRow:
    """A sentence that holds for some runs."""

    runs: tuple[int, ...]
    text: str


def task_section(
    store: Store, name: str, rows: tuple[RunRow, ...], token_texts: TokenTexts, margin: float | None
) -> TaskSection:
    shown = tuple(row for row in rows if row.summary.run["role"] != "control" and row.leads)
    metric = next((m for row in shown if (m := row.summary.primary_metric)), None)
    comparisons = Comparisons(store, [row.summary.run for row in rows], [row.summary for row in rows])
    pairs = pair_rows(comparisons, shown, rows, margin)
    controls = control_rows(comparisons, rows)
    headline, sentences = task_findings(shown, pairs, metric, controls)
    return TaskSection(
        name=name,
        runs=rows,
        shown=tuple(row for row in rows if row.leads),
        metric=metric.label if metric else "",
        speed_chart=_speed_chart(shown, metric),
        time_chart=_time_chart(shown),
        pairs=pairs,
        controls=controls,
        origin=origin_section(store, comparisons, shown, pairs),
        templates=template_studies(store, comparisons, [row.summary.run for row in rows], margin),
        repeated=tuple(row for row in rows if row.leads and len(row.group.summaries) > 1),
        trace=trace_section(store, shown, token_texts),
        sentences=sentences,
        headline=headline,
        notes=_notes([row for row in rows if row.leads]),
        forward_kinds=tuple(k for k in FORWARD_KINDS if any(row.summary.forwards.get(k) for row in rows)),
        time_items=tuple(
            item for n, item in enumerate(TIME_ITEMS) if any(row.summary.seconds[n].seconds > 0 for row in rows)
        ),
    )


def _notes(rows: Sequence[RunRow]) -> tuple[NoteRow, ...]:
    """Every note once, with the runs that it holds for."""
    found: dict[str, list[int]] = {}
    together: set[str] = set()
    for concluded in (True, False):
        off = [row for row in rows if row.summary.doubt > 1 and isfinite(row.summary.doubt) == concluded]
        if len(off) > 1:
            runs = [row.summary.run for row in off]
            found[books_note(runs, [f"run {row.number}" for row in off])] = [row.number for row in off]
            together |= {books_note([run]) for run in runs}
    for row in rows:
        failures = [f"{kind.count} × {kind.type}: {kind.message}" for kind in row.summary.failures]
        speed = row.pace
        unknown = [f"Speed: {speed.reason}."] if speed.value is not None and not speed.has_interval else []
        for text in (*row.summary.notes, *failures, *unknown):
            if text in together:
                continue
            found.setdefault(text, []).append(row.number)
    return tuple(NoteRow(tuple(numbers), text) for text, numbers in found.items())


def _speed_chart(rows: Sequence[RunRow], metric: Metric | None) -> Chart | None:
    points = []
    for row in rows:
        speed, quality = row.pace, same_metric(row.summary, metric)
        if quality is not None and quality.figure.value is not None and speed.value:
            points.append(
                SpeedPoint(
                    row.number, str(row.summary.run["backend"]), speed.value, speed.low, speed.high,
                    quality.figure.value, quality.figure.low, quality.figure.high,
                )
            )  # fmt: skip
    if not points or metric is None:
        return None
    return speed_and_quality(points, metric.label, metric.binary, rows[0].pace.unit)


def _time_chart(rows: Sequence[RunRow]) -> Chart | None:
    bars = [
        TimeBar(row.number, row.label, {s.item: s.seconds / row.summary.answered for s in row.summary.seconds})
        for row in rows
        if row.summary.answered
    ]
    return where_time_goes(bars) if bars else None
