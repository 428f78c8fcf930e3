"""What a decoder is asked, what it answers, and what that cost. Standard library only.

Counts and times follow the measuring rules of the README ("How it measures"): every counter has one meaning,
and every second of a request belongs to exactly one item.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: Kinds of forward pass, in the order in which they are shown.
FORWARD_KINDS = ("prefill", "denoise", "refresh", "commit", "score", "cfg")

#: Items of a request's clock, in the order in which they are shown. They add up to the total.
TIME_ITEMS = (
    "waiting",
    "tokenise",
    "prefill",
    "denoise",
    "refresh",
    "commit",
    "score",
    "sampling",
    "host",
    "detokenise",
)


@dataclass(frozen=True)
class Request:
    """One thing to decode: a prompt, optionally a suffix to infill before, and its own settings.

    Exactly one of `prompt` (text) and `prompt_ids` is given; likewise at most one of `suffix` and `suffix_ids`.
    `until`: stop strings; the text is cut before the first of them.
    `settings`: decode settings that override those of the run for this request alone.
    `key`: address of the request by content; the seed of its random draws is derived from it.
    """

    id: str
    prompt: str | None = None
    prompt_ids: tuple[int, ...] | None = None
    suffix: str | None = None
    suffix_ids: tuple[int, ...] | None = None
    until: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    key: str = ""


@dataclass(frozen=True)
class Forward:
    """One forward pass as a row saw it. `width`: query positions of this row; `block`: index of its block."""

    kind: str
    width: int
    block: int


@dataclass(frozen=True)
class Commit:
    """A token that became final. `step`: index of this row's forward; `position` counts from the first prompt token.

    `confidence`: the score by which the decoder ranked it (a probability unless another confidence was asked for).
    """

    step: int
    position: int
    token: int
    confidence: float


@dataclass(frozen=True)
class Trace:
    """Every forward and every commit of one row, in order."""

    forwards: tuple[Forward, ...]
    commits: tuple[Commit, ...]


@dataclass(frozen=True)
class Generation:
    """The answer to one request, with what it cost.

    output_ids: every canvas position after the prompt (before the suffix) in the blocks that were decoded, untrimmed.
    answer_ids: output ids cut at the first end-of-text token, or at the token in which the first stop string begins.
    Masks, padding and other tokens that show no text are none of them.
    answered_tokens: length of `answer_ids`. committed_tokens: positions committed in the window.
    residual_masks: positions of decoded blocks that still hold a mask (only a `compat` program leaves any).
    forwards: forward passes of this row by kind. query_positions: sum of their widths.
    committing_forwards: those that may commit a token (the denominator of tau).
    guaranteed_commits: commits whose forward met (n+1)(1-c) <= 1 (Fast-dLLM, arXiv 2505.22618, Theorem 1).
    seconds: items of `TIME_ITEMS` and "total", the time between handing over the request and having its text.
    ttft_seconds: until the first answer position in reading order was final inside the decoder. None: nothing answered.
    delivered_seconds: until the first answer text could be at a client: a block decoder delivers whole blocks.
    block_seconds: until each block closed; empty for an autoregressive decoder, which has none.
    queue_seconds: of the waiting, how long the request had been there before a row took it on.
    elapsed_seconds: of the run's timed region when this answer was finished.
    stop: "length", "eos" or "until".
    """

    id: str
    prompt_tokens: int
    output_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    text: str | None
    answered_tokens: int
    committed_tokens: int
    residual_masks: int
    forwards: Mapping[str, int]
    query_positions: int
    committing_forwards: int
    guaranteed_commits: int
    seconds: Mapping[str, float]
    ttft_seconds: float | None
    elapsed_seconds: float
    stop: str
    trace: Trace | None = None
    delivered_seconds: float | None = None
    block_seconds: tuple[float, ...] = ()
    queue_seconds: float = 0.0

    @property
    def nfe(self) -> int:
        """Number of forward evaluations of this row, all kinds."""
        return sum(self.forwards.values())


@dataclass(frozen=True)
class Question:
    """One thing to score: how likely is an answer after a prompt, each given as text or as ids.

    rolling: the answer is a whole text without a prompt, scored in windows of the model's context where it is longer.
    key: address of the question by content; the seed of its random draws is derived from it.
    """

    id: str
    answer: str | None = None
    answer_ids: tuple[int, ...] | None = None
    prompt: str | None = None
    prompt_ids: tuple[int, ...] | None = None
    rolling: bool = False
    key: str = ""


@dataclass(frozen=True)
class ScoredAnswer:
    """How likely a given answer is, with what it cost to find out. Nothing was decoded.

    loglikelihood: in nats, of all answer tokens together. standard_error: of its estimate; 0 when `exact`.
    samples: masked copies that it rests on. is_greedy: whether greedy decoding gives exactly this answer; None where that
    was not asked (a rolling question).
    forwards: sequences that were run, by kind: each masked copy is one. query_positions: sum of their lengths.
    seconds: items of `TIME_ITEMS` and "total". elapsed_seconds: of the run's timed region when this was finished.
    """

    id: str
    prompt_tokens: int
    scored_tokens: int
    loglikelihood: float
    standard_error: float
    samples: int
    exact: bool
    is_greedy: bool | None
    forwards: Mapping[str, int]
    query_positions: int
    seconds: Mapping[str, float]
    elapsed_seconds: float


@dataclass(frozen=True)
class Failure:
    """A request that could not be decoded or scored: recorded and counted, never silently gone from an average."""

    id: str
    type: str
    message: str


@dataclass(frozen=True)
class ForwardShape:
    """How often a forward of this shape ran, and the seconds it took, over a whole run.

    width: query positions per row (the widest row of the batch). rows: rows of the batch.
    decided: positions whose logits were computed, keys: columns that the widest row could see; both summed over all
    forwards of the shape. in_flight: rows that were in flight at each forward, summed, whether they took part or waited;
    None where it was not recorded.
    """

    kind: str
    width: int
    rows: int
    count: int
    seconds: float
    decided: int
    keys: int
    in_flight: int | None = None


@dataclass(frozen=True)
class EngineLog:
    """What an engine did during one run, beside the requests' own records.

    makespan_seconds: from the start to the last answer; storing results is left out.
    store_seconds: time spent storing results, outside every clock.
    seconds: of the makespan by item; beside `TIME_ITEMS`, "idle" is time in which no request was there.
    rows: requests that could be in flight together. ramp_seconds: until so many first were; drain_seconds: from the last
    moment that they were, nobody being admitted after, to the end. None: they never were, or it was not recorded.
    compiled_graphs: that torch compiled meanwhile, in time that is no request's work.
    notes: what a reader of the run must know, as sentences.
    """

    shapes: tuple[ForwardShape, ...]
    makespan_seconds: float
    store_seconds: float
    seconds: Mapping[str, float]
    rows: int | None = None
    ramp_seconds: float | None = None
    drain_seconds: float | None = None
    compiled_graphs: int = 0
    notes: tuple[str, ...] = ()

    @property
    def batch_forwards(self) -> int:
        """Forward passes of the batch, all kinds."""
        return sum(shape.count for shape in self.shapes)

    @property
    def row_forwards(self) -> int:
        """Sum over forwards of the rows that took part."""
        return sum(shape.count * shape.rows for shape in self.shapes)

    @property
    def row_slots(self) -> int:
        """Sum over forwards of the rows that were in flight, whether they took part or waited."""
        return sum(shape.in_flight or 0 for shape in self.shapes)
