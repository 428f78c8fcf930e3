"""What a backend promises of its results, checked as they come: anybody's may break it, and no figure may rest on that.

Every request has one result, with times, counts and ids that can be true. What breaks the promise is a failure of its
request that names the backend; the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import isclose, isfinite
from typing import TYPE_CHECKING, Any

from dllm_audit.analysis.rows import sound
from dllm_audit.errors import BackendError
from dllm_audit.records import FORWARD_KINDS, TIME_ITEMS, EngineLog, Failure, Generation, ScoredAnswer

if TYPE_CHECKING:
    from dllm_audit.decode.tally import OnShapes
    from dllm_audit.records import ForwardShape, Question, Request

_COUNTS = (
    "prompt_tokens", "answered_tokens", "committed_tokens", "residual_masks", "query_positions", "committing_forwards",
    "guaranteed_commits", "scored_tokens", "samples",
)  # fmt: skip
_STOPS = ("length", "eos", "until")
_MOMENTS = ("ttft_seconds", "delivered_seconds")


class HeldSession:
    """A session of backend `name`, held to its promises. vocab_size: ids of its model lie below it."""

    def __init__(self, session: Any, name: str, vocab_size: int) -> None:
        self.session = session
        self.name = name
        self.vocab_size = vocab_size

    @property
    def is_foreign(self) -> bool:
        """Whether clock and counters are the backend's own, not those of this package's engine."""
        return type(self.session).__module__.partition(".")[0] != "dllm_audit"

    def generate(
        self,
        requests: Iterable[Request],
        on_result: Callable[[Generation | Failure], None],
        concurrency: int = 1,
        traced: bool = False,
        on_shapes: OnShapes | None = None,
        arrivals: Sequence[float] | None = None,
    ) -> EngineLog:
        """As in `Session`."""
        asked = list(requests)
        results = _Results(self, Generation, on_result, {request.id: None for request in asked})
        with self._goes_on():
            log = self.session.generate(
                asked, results.take, concurrency, traced, on_shapes=on_shapes, arrivals=arrivals
            )
        return results.closed(log)

    def score(
        self,
        questions: Iterable[Question],
        on_result: Callable[[ScoredAnswer | Failure], None],
        concurrency: int = 1,
        on_shapes: OnShapes | None = None,
    ) -> EngineLog:
        """As in `LikelihoodSession`."""
        asked = list(questions)
        results = _Results(self, ScoredAnswer, on_result, {question.id: None for question in asked})
        with self._goes_on():
            log = self.session.score(asked, results.take, concurrency, on_shapes)
        return results.closed(log)

    def warm_up(self, work: Sequence[Any], concurrency: int) -> None:
        """As in `Session`."""
        with self._goes_on():
            self.session.warm_up(work, concurrency)

    def forward_costs(self, shapes: Sequence[ForwardShape], seconds: float) -> list[float] | None:
        """As in `Session`; None for what cannot be a cost of each shape."""
        costs = self.session.forward_costs(shapes, seconds)
        if not isinstance(costs, list) or len(costs) != len(shapes) or not all(map(sound, costs)):
            return None
        return costs

    @contextmanager
    def _goes_on(self) -> Iterator[None]:
        """A backend that ends the program fails: its exit status is none of this command's."""
        try:
            yield
        except SystemExit as error:
            raise BackendError(
                f"Backend {self.name!r} wanted to end the program (SystemExit {error.code!r}). What had finished is kept."
            ) from error


@dataclass
class _Results:
    """The results of one call. open: ids that have none yet, in their order. forwards: that the results count."""

    held: HeldSession
    kind: type
    on_result: Callable[[Any], None]
    open: dict[str, None]
    notes: list[str] = field(default_factory=list)
    forwards: int = 0
    failed: bool = False

    def take(self, result: Any) -> None:
        """Pass a result on, or the failure that it is. What belongs to no open request is left out, with a note."""
        id = getattr(result, "id", None)
        if not isinstance(id, str) or id not in self.open:
            self._note("gave a result for a request that it was not asked for or had answered before; it is left out")
            return
        del self.open[id]
        if not isinstance(result, Failure):
            broken = broken_promise(result, self.kind, self.held.vocab_size)
            result = result if broken is None else self._failure(id, f"gave a result that cannot be true: {broken}.")
        self.failed |= isinstance(result, Failure)
        # Guidance is counted beside the forward that it doubles.
        self.forwards += sum(n for kind, n in getattr(result, "forwards", {}).items() if kind != "cfg")
        self.on_result(result)

    def closed(self, log: Any) -> EngineLog:
        """The log of a call that has ended, after a failure for every request without a result."""
        for id in list(self.open):
            del self.open[id]
            self.failed = True
            self.on_result(self._failure(id, "ended without a result for this request."))
        if not isinstance(log, EngineLog):
            raise BackendError(
                f"Backend {self.held.name!r} returned {type(log).__name__} where the log of its engine is due, so what it did is "
                "not known. What had finished is kept. Its plugin must return an EngineLog."
            )
        if self.held.is_foreign and log.shapes and not self.failed and self.forwards != log.row_forwards:
            self._note(
                f"counts {self.forwards:,} forwards in its results and {log.row_forwards:,} in the log of its engine, so its "
                "tokens per forward are not to be relied on"
            )
        return replace(log, notes=(*log.notes, *self.notes)) if self.notes else log

    def _failure(self, id: str, what: str) -> Failure:
        return Failure(id, BackendError.__name__, f"Backend {self.held.name!r} {what}")

    def _note(self, what: str) -> None:
        note = f"Backend {self.held.name!r} {what}."
        if note not in self.notes:
            self.notes.append(note)


def broken_promise(result: Any, kind: type[Any], vocab_size: int) -> str | None:
    """Why a result cannot be true, as a clause; None where it can. kind: what its session gives."""
    if not isinstance(result, kind):
        return f"it is a {type(result).__name__} and no {kind.__name__}"
    seconds, forwards = result.seconds, result.forwards
    if not isinstance(seconds, Mapping) or not {"total", *TIME_ITEMS} >= seconds.keys() >= {"total"}:
        return "its seconds are no items of the clock with a total"
    counted = {name: getattr(result, name, 0) for name in _COUNTS}
    if not isinstance(forwards, Mapping) or not set(FORWARD_KINDS) >= forwards.keys():
        return f"its forwards are not of the kinds {', '.join(FORWARD_KINDS)}"
    counted |= {f"{kind} forwards": number for kind, number in forwards.items()}
    for name, number in counted.items():
        if not isinstance(number, int) or not sound(number):
            return f"{name} is {number!r}"
    timed = {f"{item} seconds": value for item, value in seconds.items()} | {"elapsed_seconds": result.elapsed_seconds}
    timed |= {name: value for name in _MOMENTS if (value := getattr(result, name, None)) is not None}
    for name, value in timed.items():
        if not sound(value):
            return f"{name} is {value!r}"
    parts = sum(value for item, value in seconds.items() if item != "total")
    if not isclose(parts, seconds["total"], rel_tol=0.01, abs_tol=1e-6):
        return f"its items add up to {parts:g} s and its total is {seconds['total']:g} s"
    return _broken_answer(result, vocab_size) if isinstance(result, Generation) else _broken_score(result)


def _broken_answer(result: Generation, vocab_size: int) -> str | None:
    for name in ("output_ids", "answer_ids"):
        ids = getattr(result, name)
        if not isinstance(ids, tuple) or not all(isinstance(id, int) and 0 <= id < vocab_size for id in ids):
            return f"{name} holds what is no token id of this model, from 0 to {vocab_size - 1}"
    if result.text is not None and not isinstance(result.text, str):
        return "its text is no text"
    if result.stop not in _STOPS:
        return f"it stopped for {result.stop!r}, which is none of {', '.join(_STOPS)}"
    if result.answered_tokens != len(result.answer_ids):
        return f"answered_tokens is {result.answered_tokens} for {len(result.answer_ids)} answer ids"
    if len(result.answer_ids) > len(result.output_ids):
        return "more was answered than was decoded"
    if result.committed_tokens + result.residual_masks != len(result.output_ids):
        return (
            f"{result.committed_tokens} committed positions and {result.residual_masks} masks are not the "
            f"{len(result.output_ids)} that were decoded"
        )
    if result.committed_tokens and not result.nfe:
        return "it has tokens and no forward"
    return None


def _broken_score(result: ScoredAnswer) -> str | None:
    if not isfinite(result.loglikelihood) or not sound(result.standard_error):
        return f"its log-likelihood is {result.loglikelihood!r} with the standard error {result.standard_error!r}"
    return None
