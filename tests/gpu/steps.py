"""What a step is, and what it found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.gpu.models import Context


@dataclass(frozen=True)
class Found:
    """passed: None where a step only measures. sentence: what it found. facts: the numbers behind it, for the JSON file."""

    passed: bool | None
    sentence: str
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """One step: what it is about, the seconds that it may take, and whether it means anything without CUDA."""

    name: str
    about: str
    run: Callable[[Context], Found]
    most_seconds: float
    needs_cuda: bool = False
