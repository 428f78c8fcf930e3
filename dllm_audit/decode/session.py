"""From requests to generations: tokenise, decode, detokenise, and book every second of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch

from dllm_audit.decode.loop import NOT_FINITE, DecodeLoop, Finished, Job, check_fits, seed_of
from dllm_audit.decode.state import RowInput
from dllm_audit.decode.tally import OnShapes, engine_log, shapes_so_far
from dllm_audit.errors import AuditError, Interrupted, RequestError, UsageError
from dllm_audit.measure.clock import Clock, timer_for
from dllm_audit.records import (
    EngineLog,
    Failure,
    ForwardShape,
    Generation,
    Request,
    Trace,
)

if TYPE_CHECKING:
    from dllm_audit.decode.recipe import Recipe
    from dllm_audit.models.loading import LoadedModel

#: Called with each result as soon as it is finished, outside every clock.
OnResult = Callable[[Generation | Failure], None]


_NOT_FINITE = (
    "The model's logits are not finite (NaN or infinite), so no token can be chosen. Its weights or config may be damaged, "
    "or the number format too narrow: try --dtype float32."
)


@dataclass(frozen=True)
class Prepared:
    """A request with the recipe and the window that its settings mean."""

    request: Request
    recipe: Recipe
    gen_length: int


class RecipeSession:
    """Decodes requests on one loaded model with the recipes that `recipe_for` makes of their settings.

    recipe_for(request) returns (recipe, gen_length) or raises an AuditError, which fails that request alone.
    """

    def __init__(
        self,
        model: LoadedModel,
        recipe_for: Callable[[Request], tuple[Recipe, int]],
        seed: int = 0,
    ) -> None:
        self.model = model
        self.recipe_for = recipe_for
        self.seed = seed

    def generate(
        self,
        requests: Iterable[Request],
        on_result: OnResult,
        concurrency: int = 1,
        traced: bool = False,
        on_shapes: OnShapes | None = None,
    ) -> EngineLog:
        """Decode `requests` with up to `concurrency` in flight; each result goes to `on_result` as it ends.

        on_shapes: told before each result what ran up to it, so that a killed run can keep it.
        Requests with different recipes are decoded in groups, in order of first appearance. Returns the engine's log.
        """
        if concurrency < 1:
            raise UsageError(f"concurrency={concurrency}: at least one request must be in flight.")
        groups: dict[Recipe, list[Prepared]] = {}
        seen: set[str] = set()
        for request in requests:
            if request.id in seen:
                raise UsageError(
                    f"Two requests have the id {request.id!r}. Results are told apart by it: give each its own."
                )
            seen.add(request.id)
            try:
                recipe, gen_length = self.recipe_for(request)
                prepared = Prepared(request, recipe, gen_length)
                row = self._row_input(prepared)
                check_fits(row, self.model)
                # Steps that do not divide by the blocks of this row fail it here, before anything runs.
                start = len(row.prompt_ids)
                blocks = recipe.order.spans(start, start + gen_length)
                recipe.schedule.steps_of(blocks[0], len(blocks))
            except AuditError as error:
                on_result(Failure(request.id, type(error).__name__, str(error)))
                continue
            groups.setdefault(recipe, []).append(prepared)
        logs: list[EngineLog] = []
        for recipe, group in groups.items():
            logs.append(self._run_group(recipe, group, on_result, concurrency, traced, _join(logs), on_shapes))
        return _join(logs)

    def forward_costs(self, shapes: Sequence[ForwardShape], seconds: float) -> list[float]:
        """Seconds of one bare forward of each shape, measured now for about `seconds`. See decode.costs."""
        from dllm_audit.decode.costs import measure_costs

        return measure_costs(self.model, shapes, seconds)

    def warm_up(self, requests: Sequence[Request], concurrency: int) -> None:
        """Decode `requests` once and forget them, so that the first timed ones do not pay for allocations."""
        rehearsal = [replace(request, id=f"warm-up {n}") for n, request in enumerate(requests)]
        self.generate(rehearsal, lambda result: None, concurrency)

    def _run_group(
        self,
        recipe: Recipe,
        group: Sequence[Prepared],
        on_result: OnResult,
        concurrency: int,
        traced: bool,
        before: EngineLog,
        on_shapes: OnShapes | None,
    ) -> EngineLog:
        length = max(self._row_input(prepared).length for prepared in group)
        rows = min(concurrency, len(group))
        by_id = {prepared.request.id: prepared for prepared in group}
        timer = timer_for(self.model.device)
        with torch.inference_mode():
            timer.settle()
            clock = Clock(timer)
            try:
                loop = DecodeLoop(self.model, recipe, rows, length, clock)
            except RuntimeError as error:
                # torch says it in a subclass of RuntimeError on a GPU, and in its words alone on a CPU.
                if "memory" not in str(error).lower():
                    raise
                raise AuditError(
                    f"There is not enough memory for {rows} rows of {length} positions beside the model. "
                    "Lower the concurrency or gen_length."
                ) from error
            clock.restart()
            try:
                for finished in loop.run(self._jobs(group, clock, traced)):
                    if finished.row.stop == NOT_FINITE:
                        clock.stop(finished.job.id)
                        clock.pause()
                        on_result(Failure(finished.job.id, "RequestError", _NOT_FINITE))
                        clock.resume()
                        continue
                    text, answer_ids, stop = self._answer(by_id[finished.job.id], finished)
                    clock.mark("detokenise", [finished.job.id])
                    watch = clock.stop(finished.job.id)
                    clock.pause()
                    elapsed = before.makespan_seconds + clock.total
                    booked = Booked(clock.items(watch), clock.ttft(watch) if answer_ids else None, elapsed)
                    if on_shapes is not None:
                        on_shapes((*before.shapes, *shapes_so_far(loop.shapes, clock)))
                    on_result(_generation(finished, text, answer_ids, stop, booked))
                    clock.resume()
            except KeyboardInterrupt:
                raise Interrupted("Interrupted.", _join([before, engine_log(loop.shapes, clock)])) from None
            return engine_log(loop.shapes, clock)

    def _jobs(self, group: Sequence[Prepared], clock: Clock, traced: bool) -> Iterator[Job]:
        for prepared in group:
            clock.start(prepared.request.id)
            row = self._row_input(prepared)
            clock.mark("tokenise", [prepared.request.id])
            request = prepared.request
            yield Job(
                request.id,
                row,
                seed_of(self.seed, request.key or request.id),
                traced,
                *self._closes(request.until),
            )

    def _row_input(self, prepared: Prepared) -> RowInput:
        request = prepared.request
        prompt = request.prompt_ids if request.prompt_ids is not None else self.encode(request.prompt or "")
        suffix = request.suffix_ids
        if suffix is None:
            suffix = self.encode(request.suffix, continues=True) if request.suffix else ()
        if suffix and not prepared.recipe.cache.supports_suffix:
            raise RequestError(
                "This backend decodes left to right and cannot see a suffix, so it cannot infill. "
                "Use uncached, prefixcache or dualcache."
            )
        return RowInput(tuple(prompt), prepared.gen_length, tuple(suffix))

    def encode(self, text: str, continues: bool = False) -> tuple[int, ...]:
        """Token ids of `text`, see `encode_text`."""
        return encode_text(self.model, text, continues)

    def _stops(self, until: Sequence[str]) -> tuple[tuple[str, ...], frozenset[int]]:
        """`until` as texts and ids: a stop string that is a special token never shows in text, so it stops by its id."""
        tokenizer = self.model.tokenizer
        if tokenizer is None:
            return (), frozenset()
        special = {
            str(token): number
            for number, token in tokenizer.added_tokens_decoder.items()
            if token.special and str(token) in until
        }
        return tuple(stop for stop in until if stop not in special), frozenset(special.values())

    def _closes(self, until: Sequence[str]) -> tuple[Callable[[Sequence[int]], bool] | None, int]:
        """The check for stop strings and how many tokens before a new block it must see."""
        tokenizer = self.model.tokenizer
        texts, ids = self._stops(until)
        if tokenizer is None or not (texts or ids):
            return None, 0
        # A stop string spans at most as many tokens as it has bytes.
        reach = max((len(text.encode()) for text in texts), default=0)

        def closes(tail: Sequence[int]) -> bool:
            if any(token in ids for token in tail):
                return True
            text = str(tokenizer.decode(list(tail), skip_special_tokens=True)) if texts else ""
            return any(stop in text for stop in texts)

        return closes, reach

    def _answer(self, prepared: Prepared, finished: Finished) -> tuple[str | None, tuple[int, ...], str]:
        """Text and ids of the answer, cut at end-of-text and at the first stop string, and why it ended."""
        recipe = prepared.recipe
        texts, stop_ids = self._stops(prepared.request.until)
        ids = finished.window_ids
        ends = {*recipe.end_ids, *stop_ids}
        cut = next((i for i, token in enumerate(ids) if token in ends), None)
        answer = ids if cut is None else ids[:cut]
        mask = recipe.score.mask_token_id
        stop = finished.row.stop or "length"
        if cut is not None:
            stop = "eos" if ids[cut] in recipe.end_ids else "until"
        tokenizer = self.model.tokenizer
        if tokenizer is None:
            return None, tuple(i for i in answer if i != mask), stop

        def decode(part: Sequence[int]) -> str:
            return str(tokenizer.decode(list(part), skip_special_tokens=True, clean_up_tokenization_spaces=False))

        text = decode(answer)
        found = [at for at in (text.find(s) for s in texts) if at >= 0]
        if found:
            text, stop = text[: min(found)], "until"
            low, high = 0, len(answer)
            while low < high:
                middle = (low + high + 1) // 2
                low, high = (middle, high) if len(decode(answer[:middle])) <= len(text) else (low, middle - 1)
            answer = answer[:low]
        return text, tuple(i for i in answer if i != mask), stop


def encode_text(model: LoadedModel, text: str, continues: bool = False) -> tuple[int, ...]:
    """Token ids of `text`, with the tokenizer's own special tokens unless it `continues` another text."""
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise RequestError(
            f"The model folder {model.source.ref} has no tokenizer, so it takes token ids only: "
            'give {"prompt_ids": [...]} with --requests instead of text.'
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"Character {error.start + 1} of the text is half of a surrogate pair and no character of its own, "
            "so it has no tokens. Take it out, or write the whole character."
        ) from None
    bos = tokenizer.bos_token
    special = not continues and not (bos and text.startswith(bos))
    return tuple(tokenizer.encode(text, add_special_tokens=special))


class Booked(NamedTuple):
    """Seconds of a finished request: by item, until its first token, and of the run when it ended."""

    seconds: dict[str, float]
    ttft: float | None
    elapsed: float


def _generation(
    finished: Finished, text: str | None, answer_ids: tuple[int, ...], stop: str, booked: Booked
) -> Generation:
    row = finished.row
    window = len(finished.window_ids)
    return Generation(
        id=finished.job.id,
        prompt_tokens=row.shape.start,
        output_ids=finished.window_ids,
        answer_ids=answer_ids,
        text=text,
        answered_tokens=len(answer_ids),
        committed_tokens=window - finished.residual_masks,
        residual_masks=finished.residual_masks,
        forwards=dict(row.forwards),
        query_positions=row.query_positions,
        committing_forwards=row.committing_forwards,
        guaranteed_commits=row.guaranteed,
        seconds=booked.seconds,
        ttft_seconds=booked.ttft,
        elapsed_seconds=booked.elapsed,
        stop=stop,
        trace=Trace(tuple(row.trace_forwards), tuple(row.trace_commits)) if row.traced else None,
    )


def _join(logs: Sequence[EngineLog]) -> EngineLog:
    """One log of several groups that ran one after the other."""
    seconds: dict[str, float] = {}
    for log in logs:
        for label, value in log.seconds.items():
            seconds[label] = seconds.get(label, 0.0) + value
    return EngineLog(
        tuple(shape for log in logs for shape in log.shapes),
        sum(log.makespan_seconds for log in logs),
        sum(log.store_seconds for log in logs),
        seconds,
    )
