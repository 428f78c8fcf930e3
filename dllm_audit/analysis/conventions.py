"""The same run under the counting habits of the field, each with what it hides.

A published rate says little until one knows what was counted and which clock ran. Every habit below is met in public
benchmarks of diffusion language models; the answered tokens over the whole time are the honest figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dllm_audit.analysis.figures import Figure


@dataclass(frozen=True)
class Convention:
    """One way to count. `inflation`: its rate over the honest one, None when unknown."""

    id: str
    name: str
    formula: str
    rate: Figure
    inflation: float | None
    hides: str


#: Items that a clock around the decode loop alone leaves out.
_OUTSIDE_DECODE = ("waiting", "tokenise", "prefill", "detokenise")


def conventions(
    requests: Sequence[Mapping[str, Any]], makespan: float | None, diffusion: bool = True
) -> tuple[Convention, ...]:
    """The honest rate and five habits, for the answered `requests` of a run that took `makespan` seconds.

    Clocks that leave something out are taken from the requests' own items: the share of the requests' time that
    the habit keeps is the share of the makespan that it would report. diffusion: whether a diffusion decoder ran,
    which may read the prompt inside its first forward; autoregressive decoding always has a prefill.
    """
    answered = _sum(requests, "answered_tokens")
    committed = _sum(requests, "committed_tokens")
    prompt = _sum(requests, "prompt_tokens")
    total = _sum(requests, "total_seconds")
    outside = sum(_sum(requests, f"{item}_seconds") for item in _OUTSIDE_DECODE)
    steps = _sum(requests, "denoise_seconds")
    timed = [r for r in requests if r["ttft_seconds"] is not None]
    first = _sum(timed, "ttft_seconds")
    has_prefill = _sum(requests, "prefill_forwards") > 0
    honest = _rate(answered, makespan, "measured")

    def by_tokens(id: str, name: str, formula: str, tokens: float, hides: str) -> Convention:
        return _convention(id, name, formula, _rate(tokens, makespan, "measured"), honest, hides)

    def by_clock(id: str, name: str, formula: str, kept: float, hides: str) -> Convention:
        # With the clock of nearly nothing the rate is no number that anybody would publish.
        if total <= 0 or kept <= 0 or makespan is None:
            rate = Figure(None, "tokens/s", "derived", reason="this clock would not have run at all")
        else:
            rate = _rate(answered, makespan * kept / total, "derived")
        return _convention(id, name, formula, rate, honest, hides)

    return (
        _convention(
            "answered", "Answered tokens, whole time", "A / makespan", honest, honest, "Nothing: the figure used here."
        ),
        by_tokens(
            "committed",
            "Committed window",
            "C / makespan",
            committed,
            "Counts every position of the window, also the end-of-text tail after a short answer. "
            "A longer window then looks faster.",
        ),
        by_tokens(
            "prompt-and-window",
            "Prompt and window",
            "(P + C) / makespan",
            prompt + committed,
            "Counts tokens that the user wrote. The longer the prompt, the faster the model looks.",
        ),
        by_clock(
            "decode-only",
            "Decode-only clock",
            "A / (makespan without waiting, tokenising, prefill, detokenising)",
            total - outside,
            "Leaves out what a user waits for before and after the loop."
            if has_prefill or not diffusion
            else "Leaves out waiting and the text work. This decoder reads the prompt inside its first forward, "
            "so no prefill falls away; for a decoder with a prefill of its own it would.",
        ),
        by_clock(
            "steps-only",
            "Steps-only clock",
            "A / (time of denoise forwards)",
            steps,
            "Leaves out prefill, cache refreshes, write-backs, sampling and everything on the host, "
            "so a cheap step hides expensive upkeep.",
        ),
        by_clock(
            "after-first-chunk",
            "Without the first chunk",
            "A / (makespan without the time to the first token)",
            total - first,
            "Starts the clock when the first answer token is final, yet counts all tokens: reading the prompt "
            "and most of the first block come free."
            if timed
            else "No answer token was final in any request.",
        ),
    )


def _convention(id: str, name: str, formula: str, rate: Figure, honest: Figure, hides: str) -> Convention:
    known = rate.value is not None and honest.value
    return Convention(id, name, formula, rate, rate.value / honest.value if known else None, hides)  # type: ignore[operator]


def _rate(tokens: float, seconds: float | None, status: Any) -> Figure:
    if not seconds:
        return Figure(None, "tokens/s", status, reason="the time of the whole run is not known")
    return Figure(tokens / seconds, "tokens/s", status)


def _sum(rows: Sequence[Mapping[str, Any]], column: str) -> float:
    return sum(row[column] or 0 for row in rows)
