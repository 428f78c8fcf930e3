"""One request of a task and how several runs decoded it, step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dllm_audit.report.sections.runs import RunRow

if TYPE_CHECKING:
    from dllm_audit.store.database import Store

#: Text of single tokens of a model, or None where no tokenizer is at hand. Called with the run's row.
TokenTexts = Callable[[Mapping[str, Any], Sequence[int]], "list[str] | None"]

_TRACED = """
SELECT * FROM requests
WHERE run_id = $1 AND error_type IS NULL AND ordinal IN (SELECT ordinal FROM trace_forwards WHERE run_id = $1)
ORDER BY ordinal
"""

#: Steps of a trace that are shown; a longer one says how many were left out.
SHOWN_STEPS = 160


@dataclass(frozen=True)
class TraceToken:
    """A committed token: where, in which forward, how sure. `shade` is 0 (first) to 5 (last of the forwards).

    count: so many of the same token in a row, from `position` on. end_step: the last forward among them.
    confidence: the smallest among them.
    """

    text: str
    step: int
    position: int
    confidence: float
    shade: int
    count: int = 1
    end_step: int | None = None


@dataclass(frozen=True)
class TraceStep:
    """One forward and what it committed."""

    number: int
    kind: str
    width: int
    block: int
    tokens: tuple[TraceToken, ...]


@dataclass(frozen=True)
class TraceRow:
    """One run's decoding of the example request. `tokens`: the committed window in reading order."""

    run: RunRow
    text: str
    stop: str
    forwards: int
    committed: int
    tokens: tuple[TraceToken, ...]
    steps: tuple[TraceStep, ...]
    left_out: int
    has_text: bool
    tokens_per_forward: float


@dataclass(frozen=True)
class TraceSection:
    """One request of a task, decoded by several runs. `opened`: numbers of the runs that a reader sees at once."""

    prompt: str
    document: int | None
    rows: tuple[TraceRow, ...]
    opened: tuple[int, ...]


def trace_section(store: Store, rows: Sequence[RunRow], token_texts: TokenTexts) -> TraceSection | None:
    """The request that most runs have a trace of; the first in the task's order among those."""
    by_request: dict[Any, list[tuple[RunRow, Mapping[str, Any]]]] = {}
    for row in rows:
        for request in store.query(_TRACED, [row.summary.run_id]):
            key = request["doc_id"] if request["doc_id"] is not None else -1 - request["ordinal"]
            by_request.setdefault(key, []).append((row, request))
    if not by_request:
        return None
    key = min(by_request, key=lambda k: (-len(by_request[k]), k < 0, abs(k)))
    found = by_request[key]
    shown = tuple(_trace_row(store, row, request, token_texts) for row, request in found)
    most_parallel = max(shown, key=lambda row: row.tokens_per_forward)
    return TraceSection(
        prompt=found[0][1]["prompt"] or "",
        document=key if key >= 0 else None,
        rows=shown,
        opened=(shown[0].run.number, most_parallel.run.number),
    )


def _trace_row(store: Store, row: RunRow, request: Mapping[str, Any], token_texts: TokenTexts) -> TraceRow:
    forwards, commits = store.trace(row.summary.run_id, request["ordinal"])
    texts = token_texts(row.summary.run, [c["token"] for c in commits])
    shown = texts if texts is not None else [str(c["token"]) for c in commits]
    last = max((c["step"] for c in commits), default=0)
    tokens = [
        TraceToken(
            text,
            c["step"],
            c["position"] - (request["prompt_tokens"] or 0),
            float("nan") if c["confidence"] is None else c["confidence"],
            round(5 * c["step"] / max(last, 1)),
        )
        for c, text in zip(commits, shown, strict=True)
    ]
    by_step: dict[int, list[TraceToken]] = {}
    for token in tokens:
        by_step.setdefault(token.step, []).append(token)
    steps = [
        TraceStep(
            f["step"],
            f["kind"],
            f["width"],
            f["block"],
            _collapsed(sorted(by_step.get(f["step"], []), key=lambda t: t.position)),
        )
        for f in forwards
    ]
    return TraceRow(
        run=row,
        text=request["text"] or "",
        stop=request["stop"] or "",
        forwards=len(forwards),
        committed=len(commits),
        tokens=_collapsed(sorted(tokens, key=lambda token: token.position)),
        steps=tuple(steps[:SHOWN_STEPS]),
        left_out=max(0, len(steps) - SHOWN_STEPS),
        has_text=texts is not None,
        tokens_per_forward=len(commits) / len(forwards) if forwards else 0.0,
    )


def _collapsed(tokens: Sequence[TraceToken]) -> tuple[TraceToken, ...]:
    """Three or more of the same token side by side become one with their number."""
    runs: list[list[TraceToken]] = []
    for token in tokens:
        last = runs[-1][-1] if runs else None
        if last is not None and (token.text, token.position) == (last.text, last.position + 1):
            runs[-1].append(token)
        else:
            runs.append([token])
    shown: list[TraceToken] = []
    for run in runs:
        if len(run) < 3:
            shown += run
            continue
        steps = [token.step for token in run]
        sure = min(token.confidence for token in run)
        shown.append(replace(run[0], step=min(steps), end_step=max(steps), count=len(run), confidence=sure))
    return tuple(shown)
