"""From requests to generations: tokenise, decode, detokenise, and book every second of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from dllm_audit.decode.limits import Fault, fault_of, rows_that_fit
from dllm_audit.decode.loop import NOT_FINITE, NOTHING_CHOSEN, DecodeLoop, Finished, Job, check_fits, seed_of
from dllm_audit.decode.state import RowInput
from dllm_audit.decode.stops import StopStrings, special_ids
from dllm_audit.decode.tally import OnShapes, ShapeTally, engine_log, join_logs, shapes_so_far
from dllm_audit.errors import AuditError, DeviceError, Interrupted, ModelError, OutOfMemory, RequestError, UsageError
from dllm_audit.measure.clock import Clock, Stopwatch, timer_for
from dllm_audit.measure.steady import compiled_graphs
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

_NOTHING_CHOSEN = (
    "The decoder's commit policy chose none of the positions that it was offered, and would go on for ever. Its select must choose "
    "one at least wherever the quota is 1 or more."
)

#: Why a row that could never end was given up, in words.
_ENDLESS = {NOT_FINITE: _NOT_FINITE, NOTHING_CHOSEN: _NOTHING_CHOSEN}

_NO_ROOM = (
    "The device's memory does not hold this request's forward even alone ({}). Shorten the prompt, lower gen_length, or use a "
    "smaller model."
)


@dataclass(frozen=True)
class Prepared:
    """A request with the recipe and the window that its settings mean, the columns that it takes, and when it arrives."""

    request: Request
    recipe: Recipe
    gen_length: int
    length: int
    arrival: float | None


@dataclass
class _Group:
    """Requests of one recipe at work, one after another in the order of `waiting`.

    rows: so many may be in flight. length: columns of the longest. before: what ran before them. loop: what decodes them
    now; None while memory for one is sought.
    """

    recipe: Recipe
    by_id: dict[str, Prepared]
    waiting: Iterator[Job | None]
    rows: int
    length: int
    clock: Clock
    before: EngineLog
    loop: DecodeLoop | None = None
    compiled_before: int = 0
    shapes: dict[tuple[str, int, int], ShapeTally] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def log(self) -> EngineLog:
        """What was run until now."""
        ended, loop = self.clock.elapsed(), self.loop
        ramp = drain = None
        if loop is not None and loop.full_at is not None:
            ramp = loop.full_at
            drain = 0.0 if loop.thin_since is None else ended - loop.thin_since
        return replace(
            engine_log(self.shapes, self.clock),
            rows=self.rows,
            ramp_seconds=ramp,
            drain_seconds=drain,
            compiled_graphs=compiled_graphs() - self.compiled_before,
            notes=tuple(self.notes),
        )


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
        #: So many rows are known to fit into memory, once more did not.
        self._most_rows: int | None = None
        self._stop_strings: dict[tuple[str, ...], StopStrings] = {}
        #: No answer, whatever the settings say ends one: a token of them shows no text.
        self._unseen = frozenset(special_ids(model.tokenizer))

    def generate(
        self,
        requests: Iterable[Request],
        on_result: OnResult,
        concurrency: int = 1,
        traced: bool = False,
        on_shapes: OnShapes | None = None,
        arrivals: Sequence[float] | None = None,
    ) -> EngineLog:
        """Decode `requests` with up to `concurrency` in flight; each result goes to `on_result` as it ends.

        on_shapes: told before each result what ran up to it, so that a killed run can keep it.
        arrivals: seconds after the start at which each request is there, ascending; its clock starts then, and it queues
        until a row is free. None: each is handed over when a row is free for it.
        Requests with different recipes are decoded in groups, in order of first appearance. Where memory holds fewer rows,
        so many are in flight and the log says so. Returns the engine's log. Raises DeviceError when the device fails; what
        was in flight has failed then, and what had not begun is left.
        """
        if concurrency < 1:
            raise UsageError(f"concurrency={concurrency}: at least one request must be in flight.")
        groups: dict[Recipe, list[Prepared]] = {}
        seen: set[str] = set()
        for number, request in enumerate(requests):
            if request.id in seen:
                raise UsageError(
                    f"Two requests have the id {request.id!r}. Results are told apart by it: give each its own."
                )
            seen.add(request.id)
            try:
                recipe, gen_length = self.recipe_for(request)
                row = self._row_input(request, recipe, gen_length)
                check_fits(row, self.model)
                # Steps that do not divide by the blocks of this row fail it here, before anything runs.
                start = len(row.prompt_ids)
                blocks = recipe.order.spans(start, start + gen_length)
                recipe.schedule.steps_of(blocks[0], len(blocks))
            except AuditError as error:
                on_result(Failure(request.id, type(error).__name__, str(error)))
                continue
            arrival = None if arrivals is None else arrivals[number]
            groups.setdefault(recipe, []).append(Prepared(request, recipe, gen_length, row.length, arrival))
        logs: list[EngineLog] = []
        for recipe, group in groups.items():
            logs.append(self._run_group(recipe, group, on_result, concurrency, traced, join_logs(logs), on_shapes))
        return join_logs(logs)

    def forward_costs(self, shapes: Sequence[ForwardShape], seconds: float) -> list[float] | None:
        """Seconds of one bare forward of each shape, measured now for about `seconds`. See decode.costs.

        None with a compiled or captured engine, whose forwards depend on the buffer and the padded batch that they were made for.
        """
        from dllm_audit.decode.costs import measure_costs

        if self.model.engine != "eager":
            return None
        return measure_costs(self.model, shapes, seconds)

    def warm_up(self, requests: Sequence[Request], concurrency: int) -> None:
        """Decode `requests` once and forget them, so that the first timed ones do not pay for allocations."""
        rehearsal = [replace(request, id=f"warm-up {n}") for n, request in enumerate(requests)]
        self.generate(rehearsal, lambda result: None, concurrency)

    def _run_group(
        self,
        recipe: Recipe,
        requests: Sequence[Prepared],
        on_result: OnResult,
        concurrency: int,
        traced: bool,
        before: EngineLog,
        on_shapes: OnShapes | None,
    ) -> EngineLog:
        timer = timer_for(self.model.device)
        with torch.inference_mode():
            timer.settle()
            clock = Clock(timer)
            group = _Group(
                recipe,
                {prepared.request.id: prepared for prepared in requests},
                self._jobs(requests, clock, traced, before.makespan_seconds),
                min(concurrency, len(requests)),
                max(prepared.length for prepared in requests),
                clock,
                before,
            )
            self._make_loop(group)
            group.compiled_before = compiled_graphs()
            clock.restart()
            try:
                while (fault := self._drive(group, on_result, on_shapes)) is not None:
                    if fault.kind == "device":
                        self._device_failed(group, fault, on_result)
                    self._go_on_with_less_memory(group, fault, on_result)
                return group.log()
            except KeyboardInterrupt:
                raise Interrupted("Interrupted.", join_logs([before, group.log()])) from None

    def _drive(self, group: _Group, on_result: OnResult, on_shapes: OnShapes | None) -> Fault | None:
        """Decode until no request is left, or until the machine refuses: then what it refused."""
        assert group.loop is not None
        clock = group.clock
        ended = group.loop.run(group.waiting)
        while True:
            try:
                finished = next(ended, None)
                result = None if finished is None else self._result(group, finished)
            except (RuntimeError, MemoryError) as error:
                fault = fault_of(error)
                if fault is None:
                    raise
                # Whoever handles it needs the exception gone: its frames hold the tensors of the forward.
                return fault
            if result is None:
                return None
            if on_shapes is not None and isinstance(result, Generation):
                on_shapes((*group.before.shapes, *shapes_so_far(group.shapes, clock)))
            on_result(result)
            clock.resume()

    def _make_loop(self, group: _Group) -> None:
        """A loop with as many rows as memory holds: half as many each time it does not."""
        wanted = group.rows
        rows = rows_that_fit(self.model, group.recipe, min(wanted, self._most_rows or wanted), group.length)
        while group.loop is None:
            try:
                group.loop = DecodeLoop(self.model, group.recipe, rows, group.length, group.clock, group.shapes)
            except (RuntimeError, MemoryError, ModelError) as error:
                fault = fault_of(error)
                if fault is None:
                    raise
                if fault.kind == "device":
                    raise DeviceError(self._device_words(fault)) from error
                if rows == 1:
                    raise OutOfMemory(
                        f"There is not enough memory for a single row of {group.length} positions beside the model. "
                        "Lower gen_length, shorten the prompts, or use a smaller model."
                    ) from error
                rows //= 2
        group.rows = rows
        if rows < wanted:
            self._most_rows = rows
            group.notes.append(
                f"Memory did not hold {wanted} rows of {group.length} positions beside the model, "
                f"so at most {rows} {'was' if rows == 1 else 'were'} in flight."
            )

    def _go_on_with_less_memory(self, group: _Group, fault: Fault, on_result: OnResult) -> None:
        """After a forward that found no memory: half the rows, and what was in flight once more. A lone row has failed."""
        assert group.loop is not None
        clock, flying = group.clock, list(group.loop.jobs.values())
        group.loop = None
        if group.rows == 1:
            for job in flying:
                clock.stop(job.id)
                clock.pause()
                on_result(Failure(job.id, OutOfMemory.__name__, _NO_ROOM.format(fault.words)))
                clock.resume()
        else:
            for job in flying:
                clock.start_over(job.id)
            group.waiting = chain(flying, group.waiting)
            self._most_rows = group.rows // 2
        self._give_back_memory()
        self._make_loop(group)
        # Of the time that this took, all who are there have waited.
        clock.mark("host", ())

    def _give_back_memory(self) -> None:
        if self.model.device.type == "cuda":
            torch.cuda.empty_cache()

    def _device_failed(self, group: _Group, fault: Fault, on_result: OnResult) -> NoReturn:
        """Fail what was in flight, and say how it stands. The clock of such a device cannot be read any more."""
        for id in list(group.clock.open):
            on_result(Failure(id, DeviceError.__name__, self._device_words(fault)))
        raise DeviceError(
            f"{self._device_words(fault)} What had finished is kept, what was in flight has failed, and nothing more can run on "
            "it in this process. See to the device (dllm-audit doctor); a run then goes on with --resume."
        )

    def _device_words(self, fault: Fault) -> str:
        return f"The device {self.model.device} failed: {fault.words.rstrip('.')}."

    def _result(self, group: _Group, finished: Finished) -> Generation | Failure:
        """What became of a row that has ended. The clock is paused afterwards."""
        clock, id = group.clock, finished.job.id
        if finished.row.stop in _ENDLESS:
            clock.stop(id)
            clock.pause()
            return Failure(id, RequestError.__name__, _ENDLESS[finished.row.stop])
        text, answer_ids, stop = self._answer(group.by_id[id], finished)
        clock.mark("detokenise", [id])
        watch = clock.stop(id)
        try:
            clock.pause()
        except RuntimeError:
            # The device may say only now that it failed: then this request has no times, and fails with the others.
            clock.open[id] = watch
            raise
        return _generation(finished, text, answer_ids, stop, clock, watch, group)

    def _jobs(self, requests: Sequence[Prepared], clock: Clock, traced: bool, before: float) -> Iterator[Job | None]:
        """The requests as jobs, tokenised as they are taken on; None while the next one has not arrived.

        before: seconds since the arrivals' start when the clock of this group began.
        """
        for prepared in requests:
            queued = 0.0
            if prepared.arrival is not None:
                arrival = prepared.arrival - before
                while arrival > clock.elapsed():
                    if clock.open:
                        yield None
                    else:
                        clock.idle_until(arrival)
                queued = clock.elapsed() - arrival
            request = prepared.request
            clock.start(request.id, queued)
            row = self._row_input(request, prepared.recipe, prepared.gen_length)
            clock.mark("tokenise", [request.id])
            seed = seed_of(self.seed, request.key or request.id)
            stops = self._stops(request.until)
            yield Job(request.id, row, seed, traced, stops.close if stops else None)

    def _row_input(self, request: Request, recipe: Recipe, gen_length: int) -> RowInput:
        prompt = request.prompt_ids if request.prompt_ids is not None else self.encode(request.prompt or "")
        suffix = request.suffix_ids
        if suffix is None:
            suffix = self.encode(request.suffix, continues=True) if request.suffix else ()
        if self.model.tokenizer is None and any(request.until):
            raise RequestError(
                f"The model folder {self.model.source.ref} has no tokenizer, so nobody can tell where a stop string comes. "
                "Leave until out."
            )
        if suffix and not recipe.cache.supports_suffix:
            raise RequestError(
                "This backend decodes left to right and cannot see a suffix, so it cannot infill. "
                "Use uncached, prefixcache or dualcache."
            )
        return RowInput(tuple(prompt), gen_length, tuple(suffix))

    def encode(self, text: str, continues: bool = False) -> tuple[int, ...]:
        """Token ids of `text`, see `encode_text`."""
        return encode_text(self.model, text, continues)

    def _stops(self, until: Sequence[str]) -> StopStrings:
        """The stop strings, made once: they remember which tokens can complete one."""
        key = tuple(until)
        if key not in self._stop_strings:
            self._stop_strings[key] = StopStrings(self.model.tokenizer, key)
        return self._stop_strings[key]

    def _answer(self, prepared: Prepared, finished: Finished) -> tuple[str | None, tuple[int, ...], str]:
        """Text and ids of the answer, cut at end-of-text and at the first stop string, and why it ended."""
        recipe, stops = prepared.recipe, self._stops(prepared.request.until)
        answer: Sequence[int] = finished.window_ids
        stop = finished.row.stop or "length"
        cut = next((i for i, token in enumerate(answer) if token in recipe.end_ids or token in stops.ids), None)
        if cut is not None:
            stop = "eos" if answer[cut] in recipe.end_ids else "until"
            answer = answer[:cut]
        text = None
        if self.model.tokenizer is not None:
            text, answer, found = stops.cut(answer)
            stop = "until" if found else stop
        unseen = {recipe.score.mask_token_id, *self._unseen}
        return text, tuple(i for i in answer if i not in unseen), stop


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


def _generation(
    finished: Finished,
    text: str | None,
    answer_ids: tuple[int, ...],
    stop: str,
    clock: Clock,
    watch: Stopwatch,
    group: _Group,
) -> Generation:
    row = finished.row
    window = len(finished.window_ids)
    ttft = clock.ttft(watch) if answer_ids else None
    blocks = () if group.recipe.cache.attention == "causal" else clock.closes(watch)
    delivered: dict[str, Any] = {"delivered_seconds": ttft}
    if blocks:
        delivered = {"delivered_seconds": blocks[0] if answer_ids else None, "block_seconds": blocks}
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
        seconds=clock.items(watch),
        ttft_seconds=ttft,
        elapsed_seconds=group.before.makespan_seconds + clock.total,
        stop=stop,
        trace=Trace(tuple(row.trace_forwards), tuple(row.trace_commits)) if row.traced else None,
        queue_seconds=watch.queued_seconds,
        **delivered,
    )
