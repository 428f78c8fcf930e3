"""The counting habits of the field and what each hides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dllm_audit.report.sections.runs import RunRow


@dataclass(frozen=True)
class Habit:
    """A way to count and what it hides, over all runs of the report."""

    name: str
    formula: str
    hides: str


def habits(rows: Sequence[RunRow]) -> tuple[Habit, ...]:
    """Each habit once; where what it hides depends on the decoder, every sentence that applies."""
    found: dict[str, tuple[str, str, list[str]]] = {}
    for row in rows:
        for habit in row.summary.conventions:
            sentences = found.setdefault(habit.id, (habit.name, habit.formula, []))[2]
            if habit.hides not in sentences:
                sentences.append(habit.hides)
    return tuple(Habit(name, formula, " ".join(sentences)) for name, formula, sentences in found.values())
