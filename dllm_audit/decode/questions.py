"""From questions to scored answers: tokenise, run what their likelihoods need together, and book every second of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from dllm_audit.decode.likelihood import (
    Ask,
    Likelihood,
    LikelihoodSettings,
    Reply,
    ScoringEngine,
    Steps,
    answer_steps,
    check_answer,
    check_model,
    rows_of,
    text_steps,
    text_windows,
    width_of,
)
from dllm_audit.decode.loop import seed_of
from dllm_audit.decode.session import encode_text
from dllm_audit.decode.tally import OnShapes, ShapeTally, engine_log, shapes_so_far
from dllm_audit.errors import AuditError, Interrupted, RequestError, UsageError
from dllm_audit.measure.clock import Clock, timer_for
from dllm_audit.records import EngineLog, Failure, ForwardShape, Question, ScoredAnswer

if TYPE_CHECKING:
    from dllm_audit.models.loading import LoadedModel

#: Called with each result as soon as it is finished, outside every clock.
OnScored = Callable[[ScoredAnswer | Failure], None]

_NOT_FINITE = (
    "The log-likelihood is not finite (NaN or infinite), so it says nothing. The model's weights or config may be damaged, "
    "or the number format too narrow: try --dtype float32."
)

Window = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass
class _InFlight:
    """A question at work: what it asks for next, and what it has cost so far."""

    question: Question
    windows: Sequence[Window]
    steps: Steps
    asks: list[Ask]
    sequences: int = 0
    positions: int = 0
    found: Likelihood | None = None

    @property
    def width(self) -> int:
        """Length of the sequences that it asks for: those of one step are equally long."""
        return self.asks[0].tokens.shape[1]

    def tell(self, replies: list[Reply]) -> None:
        """Take the replies to what was asked for, and ask for the next or end."""
        for ask in self.asks:
            self.sequences += len(ask.tokens)
            self.positions += ask.tokens.numel()
        try:
            self.asks = self.steps.send(replies)
        except StopIteration as end:
            self.found = end.value


class QuestionSession:
    """Scores questions on one loaded model. See `decode.likelihood` for what is computed."""

    def __init__(self, model: LoadedModel, settings: LikelihoodSettings, seed: int = 0) -> None:
        check_model(model.traits, settings)
        self.model = model
        self.settings = settings
        self.seed = seed

    def score(
        self,
        questions: Iterable[Question],
        on_result: OnScored,
        concurrency: int = 1,
        on_shapes: OnShapes | None = None,
    ) -> EngineLog:
        """Score `questions` with up to `concurrency` in flight; each result goes to `on_result` as it ends.

        on_shapes: told before each result what ran up to it, so that a killed run can keep it.
        Every question in flight brings up to `batch_size` masked copies (an autoregressive model: its one sequence) into
        each forward. Those that cannot be scored are told first. Returns the engine's log.
        """
        if concurrency < 1:
            raise UsageError(f"concurrency={concurrency}: at least one request must be in flight.")
        fitting: list[Question] = []
        length = 1
        seen: set[str] = set()
        for question in questions:
            if question.id in seen:
                raise UsageError(
                    f"Two requests have the id {question.id!r}. Results are told apart by it: give each its own."
                )
            seen.add(question.id)
            try:
                windows = self._windows(question)
                for known, scored in windows:
                    check_answer(self.model.traits, known, scored, self.settings)
            except AuditError as error:
                on_result(Failure(question.id, type(error).__name__, str(error)))
                continue
            length = max(length, *(width_of(self.model.traits, *window) for window in windows))
            fitting.append(question)
        if not fitting:
            return EngineLog((), 0.0, 0.0, {})
        return self._run(fitting, length, on_result, min(concurrency, len(fitting)), on_shapes)

    def warm_up(self, questions: Sequence[Question], concurrency: int) -> None:
        """Score `questions` once and forget them, so that the first timed ones do not pay for allocations."""
        rehearsal = [replace(question, id=f"warm-up {n}") for n, question in enumerate(questions)]
        self.score(rehearsal, lambda result: None, concurrency)

    def forward_costs(self, shapes: Sequence[ForwardShape], seconds: float) -> list[float]:
        """Seconds of one bare forward of each shape, measured now for about `seconds`. See decode.costs."""
        from dllm_audit.decode.costs import measure_costs

        return measure_costs(self.model, shapes, seconds)

    def _run(
        self,
        questions: Sequence[Question],
        length: int,
        on_result: OnScored,
        concurrency: int,
        on_shapes: OnShapes | None,
    ) -> EngineLog:
        timer = timer_for(self.model.device)
        tallies: dict[tuple[str, int, int], ShapeTally] = {}
        with torch.inference_mode():
            timer.settle()
            clock = Clock(timer)
            rows = concurrency * rows_of(self.model.traits, self.settings)
            engine = ScoringEngine(self.model, self.settings, rows, length)
            waiting = iter(questions)
            flying: list[_InFlight] = []
            clock.restart()
            try:
                while True:
                    flying += self._admit(waiting, concurrency - len(flying), clock)
                    if not flying:
                        break
                    self._advance(flying, engine, clock, tallies)
                    for one in [one for one in flying if one.found is not None]:
                        flying.remove(one)
                        watch = clock.stop(one.question.id)
                        clock.pause()
                        if on_shapes is not None:
                            on_shapes(shapes_so_far(tallies, clock))
                        on_result(self._result(one, clock.items(watch), clock.total))
                        clock.resume()
            except KeyboardInterrupt:
                raise Interrupted("Interrupted.", engine_log(tallies, clock)) from None
            except RuntimeError as error:
                # torch says it in a subclass of RuntimeError on a GPU, and in its words alone on a CPU.
                if "memory" not in str(error).lower():
                    raise
                raise AuditError(
                    f"There is not enough memory for {rows} sequences of {length} positions beside the model. "
                    "Lower the concurrency or batch_size."
                ) from error
            return engine_log(tallies, clock)

    def _admit(self, waiting: Iterator[Question], places: int, clock: Clock) -> list[_InFlight]:
        """As many questions as there are places, tokenised and asking for their first forward."""
        admitted: list[_InFlight] = []
        while len(admitted) < places and (question := next(waiting, None)) is not None:
            clock.start(question.id)
            windows = self._windows(question)
            clock.mark("tokenise", [question.id])
            traits, seed = self.model.traits, seed_of(self.seed, question.key or question.id)
            if question.rolling:
                steps = text_steps(traits, windows, self.settings, seed)
            else:
                steps = answer_steps(traits, *windows[0], self.settings, seed)
            admitted.append(_InFlight(question, windows, steps, next(steps)))
            clock.mark("host", [question.id])
        return admitted

    def _advance(
        self,
        flying: Sequence[_InFlight],
        engine: ScoringEngine,
        clock: Clock,
        tallies: dict[tuple[str, int, int], ShapeTally],
    ) -> None:
        """One forward for all questions in flight that can share it, and what each makes of it."""
        batch = [one for one in flying if not engine.one_width or one.width == flying[0].width]
        asks = [ask for one in batch for ask in one.asks]
        ids = [one.question.id for one in batch]
        prepared = engine.prepare(asks)
        clock.mark("host", None)
        replies = iter(engine.run(prepared))
        interval = clock.mark("score", ids)
        width, rows = max(one.width for one in batch), sum(len(ask.tokens) for ask in asks)
        tally = tallies.setdefault(("score", width, rows), ShapeTally())
        tally.intervals.append(interval)
        tally.decided += sum(len(ask.row) for ask in asks)
        tally.keys += width
        tally.in_flight += sum(len(ask.tokens) for one in flying for ask in one.asks)
        for one in batch:
            one.tell([next(replies) for _ in one.asks])
        clock.mark("host", ids)

    def _result(self, one: _InFlight, seconds: dict[str, float], elapsed: float) -> ScoredAnswer | Failure:
        found = one.found
        assert found is not None, "only a question that has ended has a result"
        if not (math.isfinite(found.loglikelihood) and math.isfinite(found.standard_error)):
            return Failure(one.question.id, "RequestError", _NOT_FINITE)
        kinds = ("score", "cfg") if self.settings.cfg_scale else ("score",)
        return ScoredAnswer(
            id=one.question.id,
            prompt_tokens=0 if one.question.rolling else len(one.windows[0][0]),
            scored_tokens=sum(len(scored) for _, scored in one.windows),
            loglikelihood=found.loglikelihood,
            standard_error=found.standard_error,
            samples=found.samples,
            exact=found.exact,
            is_greedy=found.is_greedy,
            forwards=dict.fromkeys(kinds, one.sequences),
            query_positions=one.positions * len(kinds),
            seconds=seconds,
            elapsed_seconds=elapsed,
        )

    def _windows(self, question: Question) -> list[Window]:
        """(what is known, what is scored): one of a question with a prompt, one or more of a whole text."""
        if not question.rolling:
            return [self._ids(question)]
        ids = question.answer_ids
        if ids is None:
            ids = encode_text(self.model, question.answer or "", continues=True)
        if not ids:
            raise RequestError("The text is empty, so there is nothing to score.")
        return text_windows(self.model.traits, ids)

    def _ids(self, question: Question) -> Window:
        """Token ids of prompt and answer. Texts are tokenised together, spaces between them belonging to the answer."""
        if question.answer is None:
            return question.prompt_ids or (), question.answer_ids or ()
        prompt = question.prompt or ""
        whole = encode_text(self.model, prompt + question.answer)
        before = encode_text(self.model, prompt.rstrip())
        return before, whole[len(before) :]
