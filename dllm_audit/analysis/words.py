"""Numbers of things and lists of names, as a sentence has them."""

from __future__ import annotations

from collections.abc import Sequence


def count(n: int, noun: str) -> str:
    """A number of things, for example "1 run" or "1,200 runs"."""
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


def listed(names: Sequence[str]) -> str:
    """Names as a sentence has them: "a, b and c"."""
    return ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else "".join(names)
