"""The decode loop: plan a forward, run it, score it, decide, apply, record, advance.

Rows are independent: each stands in its own block at its own step, and every forward takes along all rows that need one
of the same kind. A row that has ended is replaced by the next request at once. Tokens of a row do not depend on its
neighbours; what riding along costs is counted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from dllm_audit.decode.cache import RowShape, Window
from dllm_audit.decode.candidates import Candidates
from dllm_audit.decode.order import Span
from dllm_audit.decode.runner import ForwardRunner
from dllm_audit.decode.state import Canvas, Row, RowInput
from dllm_audit.decode.tally import ShapeTally
from dllm_audit.errors import RequestError, UsageError
from dllm_audit.measure.clock import Clock
from dllm_audit.records import Commit

if TYPE_CHECKING:
    from torch import Tensor

    from dllm_audit.decode.recipe import Recipe
    from dllm_audit.decode.score import Proposals
    from dllm_audit.models.loading import LoadedModel

#: The row's logits were NaN or infinite: nothing could be committed, and the row ends as a failure.
NOT_FINITE = "not finite"

#: Positions could be ranked and the commit policy chose none of them, which would go on for ever.
NOTHING_CHOSEN = "nothing chosen"

#: Work of these kinds goes before denoising: rows that wait for it cannot go on, the others can.
_FIRST = ("prefill", "commit", "refresh")


@dataclass(frozen=True)
class Job:
    """One row to decode.

    closes(ids, fresh): whether the tokens decoded so far hold a stop string; the last `fresh` of them are new.
    """

    id: str
    row: RowInput
    seed: int
    traced: bool = False
    closes: Callable[[Sequence[int], int], bool] | None = None


@dataclass(frozen=True)
class Finished:
    """A row that has ended: the state it ended in, the ids of its decoded window, and how many are still masks."""

    job: Job
    row: Row
    window_ids: tuple[int, ...]
    residual_masks: int


class DecodeLoop:
    """Runs one recipe on one model with up to `rows` rows in flight.

    length: the longest row that will be admitted, in columns. clock: where time is booked.
    shapes: where forwards are counted, to go on from another loop's.
    full_at: seconds of the clock when all rows were first in flight. thin_since: since when not all are, with nobody
    admitted after; None while all are.
    """

    def __init__(
        self,
        model: LoadedModel,
        recipe: Recipe,
        rows: int,
        length: int,
        clock: Clock,
        shapes: dict[tuple[str, int, int], ShapeTally] | None = None,
    ) -> None:
        self.model = model
        self.recipe = recipe
        self.clock = clock
        self.capacity = rows
        self.full_at: float | None = None
        self.thin_since: float | None = None
        self.shapes = {} if shapes is None else shapes
        #: Jobs in flight by id.
        self.jobs: dict[str, Job] = {}
        self.canvas = Canvas.empty(rows, length, model.device)
        cached = recipe.cache.name != "none"
        #: With a shifted head nothing stands before column 0: it is predicted from itself, as Dream's program does.
        self.first_from_itself = model.traits.shift > 0 and recipe.cache.attention == "bidirectional"
        width = recipe.cache.fixed_width(recipe.order.block_length, model.traits.shift, model.traits.block_length)
        if width is None and model.engine != "eager":
            raise UsageError(
                f"--engine {model.engine} is for steps of a fixed shape: those of dualcache (with a block_length), block and ar. "
                "This decoder has none. Use --engine eager."
            )
        if model.device.type == "mps" and (recipe.score.temperature > 0 or recipe.score.dtype == "float64"):
            raise UsageError(
                "A temperature and confidence_dtype=float64 need float64, which Apple's devices do not have. Use --device cpu."
            )
        self.runner = ForwardRunner(model, self.canvas, cached, width)
        self.free = list(range(rows))
        self._planned: dict[tuple[int, int], tuple[tuple[float, ...], int]] = {}
        self.rows: list[Row] = []

    def run(self, jobs: Iterator[Job | None]) -> Iterator[Finished]:
        """Decode `jobs` in order, yielding each as soon as it has ended; a job is drawn when a row is free for it.

        None for a job: the next one has not come yet, so what is in flight goes on without it.
        While the caller holds a yielded row, nothing runs and the clock should be paused.
        """
        exhausted = False
        while True:
            while self.free and not exhausted:
                try:
                    job = next(jobs)
                except StopIteration:
                    exhausted = True
                    break
                if job is None:
                    break
                self._admit(job)
            if not self.rows:
                return
            self._advance()
            for row in [r for r in self.rows if r.stop is not None]:
                self.rows.remove(row)
                self.free.append(row.slot)
                if row.stop == NOT_FINITE and self.runner.key_values is not None:
                    self.runner.key_values.forget(row.slot)
                if self.thin_since is None:
                    self.thin_since = self.clock.elapsed()
                yield Finished(self.jobs.pop(row.id), row, self._window_ids(row), self._residual(row))

    def _admit(self, job: Job) -> None:
        slot = self.free.pop(0)
        traits = self.model.traits
        start = len(job.row.prompt_ids)
        end = start + job.row.gen_length
        shape = RowShape(start, end, job.row.length, traits.shift, traits.block_length)
        self.canvas.fill(slot, job.row, self.recipe.score.mask_token_id, self.recipe.left_open)
        generator = None
        if self.recipe.score.draws:
            # A random order is drawn on the host, so that every device follows the same one; noise over the vocabulary is not.
            where = self.model.device if self.recipe.score.temperature > 0 else "cpu"
            generator = torch.Generator(where).manual_seed(job.seed)
        row = Row(job.id, slot, shape, self.recipe.order.spans(start, end), generator, job.traced, job.closes)
        row.decoded_to = start
        row.pending = self.recipe.cache.begin(shape)
        self._open_block(row)
        self.rows.append(row)
        self.rows.sort(key=lambda r: r.slot)
        self.jobs[job.id] = job
        self.clock.mark("host", [job.id])
        self.thin_since = self.clock.elapsed() if self.free else None
        if not self.free and self.full_at is None:
            self.full_at = self.clock.elapsed()

    def _open_block(self, row: Row) -> None:
        span = row.span
        row.quotas, row.planned_steps = self._steps_of(span, len(row.blocks))
        row.step = 0
        row.open_positions = span.width
        if row.pending is None:
            row.pending = self.recipe.cache.open_block(row.shape, span)

    def _steps_of(self, span: Span, blocks: int) -> tuple[tuple[float, ...], int]:
        """Quotas and number of the steps of a block: a matter of its width, and the same for most blocks."""
        key = span.width, blocks
        if key not in self._planned:
            schedule = self.recipe.schedule
            self._planned[key] = schedule.quotas(span, blocks), schedule.steps_of(span, blocks)
        return self._planned[key]

    def _window(self, row: Row) -> Window:
        return row.pending or self.recipe.cache.step(row.shape, row.span)

    def _advance(self) -> None:
        """One forward for all rows that need the same kind, and what follows from it."""
        self._close_ranks()
        windows = {row.slot: self._window(row) for row in self.rows}
        kinds = {window.kind for window in windows.values()}
        kind = next((k for k in _FIRST if k in kinds), "denoise")
        batch = [row for row in self.rows if windows[row.slot].kind == kind]
        plan = [windows[row.slot] for row in batch]
        ids = [row.id for row in batch]
        guided = self.recipe.cfg_scale > 0
        may_commit = plan[0].may_commit
        if may_commit:
            # Which positions the head shall see is known before the forward, so it is no part of the forward's time.
            spans = [self._decision_span(row, window) for row, window in zip(batch, plan, strict=True)]
            candidates = Candidates.of(self.canvas, self.runner.arange, batch, plan, spans, self.model.traits.shift)
            if self.first_from_itself:
                candidates.index.clamp_min_(0)
            quotas = [self._quota(row) for row in batch]
            quota = torch.tensor(quotas, device=self.model.device)
            counts = candidates.counts() if self.recipe.score.draws else []
        self.clock.mark("host", None)

        hidden = self.runner.run([r.slot for r in batch], plan, self.recipe.score.mask_token_id if guided else None)
        logits = None
        if may_commit:
            logits = self.runner.logits(hidden, candidates.row, candidates.index, self.recipe.cfg_scale)
        interval = self.clock.mark(kind, ids)
        width = max(w.hi - w.lo for w in plan)
        tally = self.shapes.setdefault((kind, width, len(batch)), ShapeTally())
        tally.intervals.append(interval)
        tally.decided += 0 if logits is None else len(logits)
        tally.keys += max(w.visible for w in plan)
        tally.in_flight += len(self.rows)
        for row, window in zip(batch, plan, strict=True):
            row.count(window, "cfg" if guided else None)

        if logits is not None:
            generators = [row.generator for row in batch] if self.recipe.score.draws else []
            proposals = self.recipe.score(logits, generators, counts)
            begun = self._decide(candidates, proposals, quotas, quota)
            self.clock.mark("sampling", ids)
            for id in begun:
                self.clock.first_token(id)
        for row in batch:
            if row.stop is None:
                self._close_or_go_on(row, committed=logits is not None)
        self.clock.mark("host", None)

    def _close_ranks(self) -> None:
        """Move rows into free slots below them: keys and values of neighbours are read in place, others copied at each step."""
        key_values = self.runner.key_values
        while key_values is not None and self.rows[-1].slot >= len(self.rows):
            row = self.rows.pop()
            target = min(self.free)
            self.canvas.move(row.slot, target)
            key_values.move(row.slot, target)
            self.free.remove(target)
            self.free.append(row.slot)
            row.slot = target
            self.rows.append(row)
            self.rows.sort(key=lambda r: r.slot)

    def _decision_span(self, row: Row, window: Window) -> Span:
        """Columns that compete in this forward."""
        if window.first_only:
            return Span(row.span.lo, row.span.lo + 1)
        whole = self.recipe.left_open and window.lo == 0 and window.hi == row.shape.length
        return Span(0, row.span.hi) if whole else row.span

    def _decide(
        self, candidates: Candidates, proposals: Proposals, quotas: Sequence[float], quota: Tensor
    ) -> list[str]:
        """Let the commit policy choose, write the chosen tokens, and book what that did to each row.

        Returns the ids of the rows whose first answer position became final.
        """
        confidence = candidates.spread(proposals.confidence, float("-inf"))
        chosen = self.recipe.commit.select(confidence, quota)
        outcomes = candidates.commit(chosen, candidates.spread(proposals.token, 0), confidence)
        begun = []
        for place, (row, asked, outcome) in enumerate(zip(candidates.rows, quotas, outcomes, strict=True)):
            row.open_positions -= outcome.within
            row.newest = outcome.token
            if outcome.committed == 0 and asked >= 1:
                # Candidates were there and none was taken: NaN compares with nothing, and would loop for ever.
                row.stop = NOT_FINITE if bool(confidence[place].isnan().any()) else NOTHING_CHOSEN
            # Equality counts, and ten times the float32 next to 0.1 is a little above 1.
            if self.recipe.score.is_greedy_probability and (outcome.committed + 1) * (1 - outcome.least) <= 1 + 1e-6:
                row.guaranteed += outcome.committed
            row.step += 1
            if outcome.first_final:
                row.first_committed = True
                begun.append(row.id)
        if any(row.traced for row in candidates.rows):
            self._trace(candidates, chosen, proposals)
        return begun

    def _quota(self, row: Row) -> float:
        """What the schedule asks of this step: a number of tokens, or a chance where it reveals at random."""
        if self.recipe.schedule.carry:
            return sum(row.quotas[: row.step + 1]) - (row.span.width - row.open_positions)
        if row.step < len(row.quotas):
            return row.quotas[row.step]
        return 0 if self.recipe.bounded else 1

    def _trace(self, candidates: Candidates, chosen: Tensor, proposals: Proposals) -> None:
        picked = chosen[candidates.row, candidates.column]
        at_row, at_column = candidates.row[picked], candidates.column[picked]
        position = candidates.columns[at_row, at_column]
        facts = (at_row, position, proposals.token[picked], proposals.confidence[picked])
        for b, column, id, confidence in zip(*(fact.tolist() for fact in facts), strict=True):
            row = candidates.rows[b]
            if row.traced:
                step = sum(row.forwards.values()) - 1
                row.trace_commits.append(Commit(step, column, id, confidence))

    def _close_or_go_on(self, row: Row, committed: bool) -> None:
        """After a forward of this row: stay in the block, close it, or end the row."""
        closing = row.pending is not None and row.pending.kind == "commit"
        row.pending = None
        if closing:
            row.block += 1
            self._open_block(row)
            return
        if not committed:
            row.pending = self.recipe.cache.open_block(row.shape, row.span)
            return
        if self.recipe.bounded and row.step >= row.planned_steps:
            done = True
        else:
            done = row.open_positions == 0 and not self.recipe.schedule.keep_empty
        if not done:
            return
        row.decoded_to = row.span.hi
        self.clock.block_closed(row.id)
        row.stop = self._stop_reason(row)
        if row.stop is not None:
            return
        row.pending = self.recipe.cache.close_block(row.shape, row.span)
        if row.pending is None:
            row.block += 1
            self._open_block(row)

    def _stop_reason(self, row: Row) -> str | None:
        if self.recipe.stop_at_eos or row.closes is not None:
            fresh = [row.newest] if row.newest is not None else self._ids(row, row.span)
            if self.recipe.stop_at_eos and any(token in self.recipe.end_ids for token in fresh):
                return "eos"
            if row.closes is not None:
                row.closed += fresh
                if row.closes(row.closed, len(fresh)):
                    return "until"
        return "length" if row.block + 1 == len(row.blocks) else None

    def _ids(self, row: Row, span: Span) -> list[int]:
        ids: list[int] = self.canvas.tokens[row.slot, span.lo : span.hi].tolist()
        return ids

    def _residual(self, row: Row) -> int:
        return int(self.canvas.editable[row.slot, row.shape.start : row.decoded_to].sum())

    def _window_ids(self, row: Row) -> tuple[int, ...]:
        return tuple(self._ids(row, Span(row.shape.start, row.decoded_to)))


def seed_of(run_seed: int, key: str) -> int:
    """A seed for one request's random draws: the same for the same run seed and content, whatever runs beside it."""
    digest = hashlib.sha256(f"{run_seed}\0{key}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def check_fits(row: RowInput, model: LoadedModel) -> None:
    """Raise RequestError when a row cannot be decoded by `model`: too long, an id outside the vocabulary, no prompt."""
    traits = model.traits
    if row.length > traits.max_positions:
        raise RequestError(
            f"The prompt of {len(row.prompt_ids)} tokens"
            + (f" and suffix of {len(row.suffix_ids)}" if row.suffix_ids else "")
            + f" plus gen_length={row.gen_length} is {row.length} positions, but the model was made for "
            f"{traits.max_positions}. Shorten the prompt (fewer few-shot examples) or lower gen_length."
        )
    if traits.shift and traits.attention != "bidirectional" and not row.prompt_ids:
        raise RequestError(
            "The prompt is empty, and this model predicts a token from the one before it. Give at least one."
        )
    bad = next((i for i in (*row.prompt_ids, *row.suffix_ids) if not 0 <= i < traits.vocab_size), None)
    if bad is not None:
        raise RequestError(f"Token id {bad} is outside this model's vocabulary of {traits.vocab_size}.")
