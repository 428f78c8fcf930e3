"""Documents of a task in a random order, and the two parts of them: some to choose a setting on, the rest to judge it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dllm_audit.errors import UsageError

DEFAULT_TUNING = 50


def documents_in_order(documents: Iterable[int], seed: int, purpose: str) -> list[int]:
    """Documents in a random order, the same for the same seed and purpose, and independent of other purposes."""
    known = sorted(set(documents))
    return random.Random(f"{seed} {purpose}").sample(known, len(known))


@dataclass(frozen=True)
class Part:
    """One of the two parts. tuning_documents: how many a setting is chosen on; the rest judges."""

    name: Literal["tuning", "rest"]
    tuning_documents: int

    def of(self, items: Sequence[Any], seed: int) -> list[Any]:
        """The items of this part, in the task's order. Raises UsageError where the rest would be empty."""
        order = documents_in_order((item.doc_id for item in items), seed, "tuning")
        check_parts(self.tuning_documents, len(order))
        first = set(order[: self.tuning_documents])
        return [item for item in items if (item.doc_id in first) == (self.name == "tuning")]

    def documents(self, available: int) -> int:
        """How many of so many documents it has."""
        return self.tuning_documents if self.name == "tuning" else available - self.tuning_documents

    def as_dict(self) -> dict[str, Any]:
        """Plain values for the manifest of a run."""
        return {"name": self.name, "tuning_documents": self.tuning_documents}


def check_parts(tuning_documents: int, available: int) -> None:
    """Raise UsageError where so many documents to choose on leave none to judge."""
    if tuning_documents >= available:
        raise UsageError(
            f"--tuning {tuning_documents} leaves no document to judge the chosen setting: there are {available}. "
            "Lower --tuning or raise --limit."
        )
