"""How numbers and tokens are written in the report."""

from __future__ import annotations

from math import floor, isfinite, log10
from typing import Any

from dllm_audit.analysis.figures import Figure
from dllm_audit.analysis.plain import visible


def number(value: float | None, digits: int = 3) -> str:
    """A number with so many significant digits and thousands apart; an en dash for None."""
    if value is None or not isfinite(value):
        return "–"
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - floor(log10(abs(value))))
    text = f"{value:,.{decimals}f}"
    # Rounding up may gain a digit: 9.996 is 10.0, not 10.00.
    if decimals and len(text.replace(",", "").replace(".", "").lstrip("-0")) > digits:
        text = f"{value:,.{decimals - 1}f}"
    return text.replace("-", "−")


def probability(value: float | None) -> str:
    """The p-value of a test with two significant digits; below 0.0001 no more than that."""
    return "< 0.0001" if value is not None and value < 0.0001 else number(value, 2)


def percent(value: float | None, decimals: int = 0) -> str:
    """A share in 0..1 as a percentage."""
    if value is None or not isfinite(value):
        return "–"
    return f"{value * 100:.{decimals}f} %".replace("-", "−")


def points(value: float | None) -> str:
    """A difference of two shares in points, with its sign."""
    if value is None or not isfinite(value):
        return "–"
    return f"{value * 100:+.1f}".replace("-", "−")


def seconds(value: float | None) -> str:
    """A duration in the unit that suits it."""
    if value is None or not isfinite(value):
        return "–"
    if value and value < 0.0995:
        return f"{number(value * 1000)} ms"
    return f"{number(value)} s"


def interval(figure: Figure, form: Any) -> str:
    """The interval of a figure, each end written by `form`, or an empty text."""
    if figure.low is None and figure.high is None:
        return ""
    if figure.high is None:
        return f"≥ {form(figure.low)}"
    if figure.low is None:
        return f"≤ {form(figure.high)}"
    return f"{form(figure.low)} to {form(figure.high)}"


def token_text(text: str) -> str:
    """One token as it is shown: spaces and line ends are marked, invisible characters are spelled out."""
    return visible(text.replace("\n", "⏎").replace("\t", "⇥").replace(" ", "␣"), keep="") or "∅"
