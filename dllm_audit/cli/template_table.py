"""A comparison under several prompt templates, as a table for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dllm_audit.analysis.plain import one_line
from dllm_audit.analysis.tables import aligned

if TYPE_CHECKING:
    from dllm_audit.analysis.figures import Figure
    from dllm_audit.analysis.templates import TemplateStudy


def template_text(study: TemplateStudy) -> str:
    """One row a template, all of them together, and whether each ranking holds."""
    rows: list[tuple[str, ...]] = [("template", "examples", "documents", "speed", "", "quality difference, points", "")]
    for row in study.rows:
        found = row.comparison
        difference, verdict = ("-", "unknown") if (q := found.quality) is None else (_points(q.difference), q.verdict)
        examples = "-" if row.num_fewshot is None else str(row.num_fewshot)
        speed = _ratio(found.speed)
        rows.append((row.name, examples, str(found.documents), speed, found.speed_verdict, difference, verdict))
    rows.append(
        ("together", "", "", _ratio(study.together_speed), "", _points(study.together_quality), study.quality_verdict)
    )
    title = f"{study.candidate} against {study.baseline} on {study.task}, under {len(study.rows)} templates"
    allowed = f"Together is clustered by document; a loss of {study.margin * 100:g} points is allowed."
    sentences = (study.speed.sentence, study.quality.sentence, allowed)
    table = aligned(rows, right={1, 2}, indent="  ")
    return "\n".join([one_line(title, 400), table, *("  " + one_line(sentence, 1000) for sentence in sentences)])


def _ratio(figure: Figure) -> str:
    if figure.value is None:
        return "-"
    return f"{figure.value:.2f}x" + (f" ({figure.low:.2f} to {figure.high:.2f})" if figure.has_interval else "")


def _points(figure: Figure) -> str:
    if figure.value is None or figure.low is None or figure.high is None:
        return "-" if figure.value is None else f"{figure.value * 100:+.1f}"
    return f"{figure.value * 100:+.1f} ({figure.low * 100:+.1f} to {figure.high * 100:+.1f})"
