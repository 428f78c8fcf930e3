"""The same comparison under several prompt templates: does the ranking of the two decoders hold?

Templates can flip which decoder looks better (arXiv 2606.29228). A ranking holds where every template shows the same side
ahead, and flips where two templates show opposite ones; an interval that shows neither leaves it open. Answers to one
document under several templates are one cluster, so what all of them say together is clustered by document.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dllm_audit.analysis.asked import template_of
from dllm_audit.analysis.figures import Figure
from dllm_audit.analysis.labels import label
from dllm_audit.analysis.pairing import DEFAULT_MARGIN, SCORED, Comparison, Comparisons, document_batches, with_doubt
from dllm_audit.analysis.pooled import SEED, draws_for
from dllm_audit.analysis.references import baseline_of
from dllm_audit.analysis.rows import stands_alone
from dllm_audit.analysis.words import count, listed
from dllm_audit.statistics.clustered import clustered_difference, clustered_non_inferiority
from dllm_audit.statistics.throughput import MINIMUM_CLUSTERS, speedup_interval

if TYPE_CHECKING:
    from dllm_audit.store.database import Store

Verdict = Literal["holds", "flips", "open"]


@dataclass(frozen=True)
class TemplateRow:
    """One template: its name, how many worked examples its prompts show, and the two sides under it."""

    name: str
    num_fewshot: int | None
    comparison: Comparison

    @property
    def speed_sign(self) -> int:
        """1 where the candidate was shown to be faster, -1 slower, 0 neither."""
        verdict = self.comparison.speed_verdict
        return 1 if verdict.startswith("faster") else -1 if verdict == "slower" else 0

    @property
    def quality_sign(self) -> int:
        """1 where the interval shows the candidate to be better, -1 worse, 0 neither."""
        quality = self.comparison.quality
        if quality is None or quality.difference.low is None or quality.difference.high is None:
            return 0
        return 1 if quality.difference.low > 0 else -1 if quality.difference.high < 0 else 0


@dataclass(frozen=True)
class Ranking:
    """Whether the same side is ahead under every template."""

    verdict: Verdict
    sentence: str


@dataclass(frozen=True)
class TemplateStudy:
    """A candidate against a baseline under several templates of one task.

    together_speed, together_quality: over all templates, with 95 % intervals clustered by document.
    quality_verdict: of the two together, against `margin` (a share).
    """

    task: str
    candidate: str
    baseline: str
    margin: float
    rows: tuple[TemplateRow, ...]
    speed: Ranking
    quality: Ranking
    together_speed: Figure
    together_quality: Figure
    quality_verdict: Literal["not worse", "worse", "open", "unknown"]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "task": self.task,
            "candidate": self.candidate,
            "baseline": self.baseline,
            "margin": self.margin,
            "templates": [
                {
                    "template": row.name,
                    "num_fewshot": row.num_fewshot,
                    "candidate": row.comparison.candidate.run_id,
                    "baseline": row.comparison.baseline.run_id,
                    "documents": row.comparison.documents,
                    "speed": _ends(row.comparison.speed),
                    "speed_verdict": row.comparison.speed_verdict,
                    "quality_difference": None if (q := row.comparison.quality) is None else _ends(q.difference),
                    "quality_verdict": "unknown" if q is None else q.verdict,
                }
                for row in self.rows
            ],
            "speed_ranking": {"verdict": self.speed.verdict, "sentence": self.speed.sentence},
            "quality_ranking": {"verdict": self.quality.verdict, "sentence": self.quality.sentence},
            "together": {
                "speed": _ends(self.together_speed),
                "quality_difference": _ends(self.together_quality),
                "quality_verdict": self.quality_verdict,
            },
        }


def template_studies(
    store: Store, comparisons: Comparisons, runs: Sequence[Mapping[str, Any]], margin: float | None = None
) -> tuple[TemplateStudy, ...]:
    """What `runs` say of templates: one study for each candidate that was run beside a baseline under two or more.

    Repeats count through their first run. margin: the loss in quality that is allowed, two points by default.
    """
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        if run["role"] == "candidate" and template_of(run) is not None and run["repeat"] == 0:
            same = ("invocation", "backend", "model", "task", "concurrency", "load", "arrival_rate", "settings")
            groups.setdefault(repr([run.get(name) for name in same]), []).append(run)
    studies = []
    for candidates in groups.values():
        pairs = [(run, baseline_of(run, runs)) for run in candidates]
        beside = [(run, other) for run, other in pairs if other is not None and template_of(other) == template_of(run)]
        if len(beside) > 1:
            studies.append(_study(store, comparisons, beside, DEFAULT_MARGIN if margin is None else margin))
    return tuple(studies)


def _study(
    store: Store, comparisons: Comparisons, pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], margin: float
) -> TemplateStudy:
    rows = tuple(
        TemplateRow(
            str(template_of(run)),
            run["manifest"]["prompts"].get("num_fewshot"),
            comparisons.compare(str(run["run_id"]), str(other["run_id"]), margin),
        )
        for run, other in pairs
    )
    first, second = pairs[0]
    candidate, baseline = (_without_template(run) for run in (first, second))
    quality, verdict = _together_quality(store, rows, margin)
    return TemplateStudy(
        task=str(first["task"]),
        candidate=candidate,
        baseline=baseline,
        margin=margin,
        rows=rows,
        speed=_ranking(
            "Speed", [row.speed_sign for row in rows], rows, [row.comparison.speed for row in rows],
            (f"{candidate} is faster", f"{candidate} is slower"), "x",
        ),
        quality=_ranking(
            "Quality", [row.quality_sign for row in rows], rows,
            [_unknown() if (q := row.comparison.quality) is None else q.difference for row in rows],
            (f"{candidate} is better", f"{candidate} is worse"), " points",
        ),
        together_speed=_together_speed(comparisons, rows),
        together_quality=quality,
        quality_verdict=verdict,
    )  # fmt: skip


def _ranking(
    what: str,
    signs: Sequence[int],
    rows: Sequence[TemplateRow],
    figures: Sequence[Figure],
    words: tuple[str, str],
    unit: str,
) -> Ranking:
    """Each of at most about nine templates at 95 %: that two of them err in opposite directions is rarer than 5 %."""
    points = unit == " points"
    values = [(f.value * 100 if points else f.value) for f in figures if f.value is not None]
    form = "{:+.1f}" if points else "{:.2f}"
    spread = "" if not values else f", at {form.format(min(values))} to {form.format(max(values))}{unit}"
    by_sign = {sign: [row.name for row, found in zip(rows, signs, strict=True) if found == sign] for sign in (1, -1, 0)}
    both = list(zip((1, -1), words, strict=True))
    for sign, word in both:
        if len(by_sign[sign]) == len(rows):
            return Ranking("holds", f"{what}: the ranking holds{spread}: {word} under all {len(rows)} templates.")
    parts = [f"under {_named(by_sign[sign])} {word}" for sign, word in both if by_sign[sign]]
    if by_sign[1] and by_sign[-1]:
        return Ranking("flips", f"{what}: the ranking flips{spread}: {'; '.join(parts)}.")
    where = f"any of the {len(rows)} templates" if len(by_sign[0]) == len(rows) else _named(by_sign[0])
    parts.append(f"nothing is shown under {where}")
    neutral = 0.0 if points else 1.0
    if any(value > neutral for value in values) and any(value < neutral for value in values):
        parts.append("the estimates point both ways")
    elif values:
        other = words[1] if any(value > neutral for value in values) else words[0]
        parts.append(f"no estimate says that {other}")
    return Ranking("open", f"{what}: open{spread}: {'; '.join(parts)}.")


def _named(names: Sequence[str]) -> str:
    return listed([f"“{name}”" for name in names])


def _together_speed(comparisons: Comparisons, rows: Sequence[TemplateRow]) -> Figure:
    """The ratio of speeds over all templates, documents drawn with all that they were asked."""
    sides = [side for row in rows for side in (row.comparison.candidate, row.comparison.baseline)]
    if not all(stands_alone(side.run) for side in sides):
        return Figure(None, "x", "derived", reason="requests in flight together share forwards")
    column = SCORED if rows[0].comparison.scored else "answered_tokens"
    sums: dict[Any, tuple[dict[str, float], dict[str, float]]] = {}
    for row in rows:
        for ours, theirs in comparisons.pairs(row.comparison.candidate.run_id, row.comparison.baseline.run_id):
            key = ours["doc_id"] if ours["doc_id"] is not None else f"place {ours['ordinal']}"
            both = sums.setdefault(key, ({column: 0.0, "total_seconds": 0.0}, {column: 0.0, "total_seconds": 0.0}))
            for total, request in zip(both, (ours, theirs), strict=True):
                total[column] += request[column] or 0
                total["total_seconds"] += request["total_seconds"]
    try:
        ours_batches, theirs_batches = document_batches(list(sums.values()), column)
    except ValueError:
        return Figure(None, "x", "derived", reason="one side answered nothing, or took no time")
    generator = np.random.default_rng(SEED)
    found = speedup_interval(
        [ours_batches], [theirs_batches], level="batch", draws=draws_for(len(ours_batches)), generator=generator
    )
    if found.low is None:
        reason = f"interval unknown: {found.clusters} of at least {MINIMUM_CLUSTERS} documents"
        return Figure(found.ratio, "x", "derived", reason=reason)
    basis = f"{count(len(sums), 'document')} under {len(rows)} templates"
    return with_doubt(Figure(found.ratio, "x", "derived", found.low, found.high, basis=basis), sides)[0]


def _together_quality(
    store: Store, rows: Sequence[TemplateRow], margin: float
) -> tuple[Figure, Literal["not worse", "worse", "open", "unknown"]]:
    quality = rows[0].comparison.quality
    documents: dict[Any, list[tuple[bool, bool]]] = {}
    for row in rows:
        if quality is None or row.comparison.quality is None or row.comparison.quality.counts is None:
            return _unknown(), "unknown"
        key = (quality.metric, quality.filter)
        ours, theirs = (
            {a["doc_id"]: a["value"] == 1 for a in store.answers(side.run_id) if (a["metric"], a["filter"]) == key}
            for side in (row.comparison.candidate, row.comparison.baseline)
        )
        for doc in ours.keys() & theirs.keys():
            documents.setdefault(doc, []).append((ours[doc], theirs[doc]))
    if len(documents) < 2:
        return _unknown(), "unknown"
    clusters = list(documents.values())
    found = clustered_difference(clusters)
    test = clustered_non_inferiority(clusters, margin)
    basis = f"{count(found.documents, 'document')} under {len(rows)} templates"
    figure = Figure(found.difference, "points", "derived", found.low, found.high, basis=basis)
    return figure, "not worse" if test.non_inferior else "worse" if test.inferior else "open"


def _unknown() -> Figure:
    return Figure(None, "points", "derived", reason="no answers that are right or wrong on both sides")


def _without_template(run: Mapping[str, Any]) -> str:
    """What a run is called where its template is the heading of its row."""
    prompts = {name: value for name, value in run["manifest"]["prompts"].items() if name != "template"}
    return label({**run, "manifest": {**run["manifest"], "prompts": prompts}})


def _ends(figure: Figure) -> dict[str, float | None]:
    return {"value": figure.value, "low": figure.low, "high": figure.high}
