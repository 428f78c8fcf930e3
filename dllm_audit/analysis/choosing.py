"""Choosing a setting on documents that do not judge it.

Whoever runs several thresholds and reports the best has picked luck too: the winner is overrated on the documents that
made it win (the winner's curse). So settings are compared on some of the documents, and the chosen one is judged by the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dllm_audit.analysis.summary import RunSummary
from dllm_audit.analysis.words import count, listed
from dllm_audit.errors import UsageError


@dataclass(frozen=True)
class Tried:
    """A setting on the documents to choose on. quality: of the metric that decides; speed in `unit`."""

    run_id: str
    threshold: Any
    quality: float
    speed: float
    unit: str


@dataclass(frozen=True)
class SettingChoice:
    """Which of several settings was chosen. place: of the chosen one in `tried`. margin: a share."""

    tried: tuple[Tried, ...]
    place: int
    metric: str
    margin: float
    documents: int

    @property
    def chosen(self) -> Tried:
        return self.tried[self.place]

    @property
    def sentence(self) -> str:
        said = [f"{t.threshold} ({t.quality:.3f}, {t.speed:.1f} {t.unit})" for t in self.tried]
        return (
            f"Threshold {self.chosen.threshold} was chosen among {listed(said)} on {count(self.documents, 'document')} that judge "
            f"nothing: the fastest whose {self.metric} is at most {self.margin * 100:g} points below the best."
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON and the manifest of a run."""
        return {
            "chosen": self.chosen.threshold,
            "margin": self.margin,
            "metric": self.metric,
            "documents": self.documents,
            "tried": [
                {"threshold": t.threshold, "run_id": t.run_id, "quality": t.quality, "speed": t.speed, "unit": t.unit}
                for t in self.tried
            ],
            "sentence": self.sentence,
        }


def choose_setting(summaries: Sequence[RunSummary], margin: float) -> SettingChoice:
    """The fastest of runs that differ in their threshold, of those whose quality is within `margin` of the best.

    Of equally fast ones the better. Raises UsageError where a run has no speed, or no metric of which more is better.
    """
    tried: list[Tried] = []
    documents = 0
    for summary in summaries:
        metric, speed = summary.primary_metric, summary.pace
        if metric is None or metric.figure.value is None or metric.lower_is_better or not speed.value:
            lacking = "was not timed" if not speed.value else "has no metric of which more is better"
            raise UsageError(
                f"--choose needs speed and quality of each setting, and {summary.run_id} {lacking}. Give one threshold."
            )
        documents = max(documents, metric.documents)
        threshold = summary.run["settings"].get("threshold")
        tried.append(Tried(summary.run_id, threshold, metric.figure.value, speed.value, speed.unit))
    best = max(t.quality for t in tried)
    # Rounding must not decide: 0.80 is two points below 0.82.
    good = [n for n, t in enumerate(tried) if t.quality >= best - margin - 1e-9]
    place = max(good, key=lambda n: (tried[n].speed, tried[n].quality))
    metric = summaries[place].primary_metric
    return SettingChoice(tuple(tried), place, "" if metric is None else metric.label, margin, documents)
