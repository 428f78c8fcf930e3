"""Which forwards each kind of decoder runs for one request, and what the roofline allows them: latency, throughput, crossover.

Teaching conventions: after a prefill, one forward per token or step, and where a block is written back, one more forward
for every block. A real decoder may save one forward of each kind, because a prefill can yield the first token and the last
block need not be written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from math import ceil

from dllm_audit.measure.roofline import Roofline, Work, window_work

#: A decoder whose steps differ from block to block is modelled with at most so many of them, each a mean of its neighbours.
_GROUPS = 32


@dataclass(frozen=True)
class Block:
    """`length` positions that begin `start` after the prompt; each step commits `tokens_per_step` of them."""

    start: int
    length: int
    tokens_per_step: int

    @property
    def steps(self) -> int:
        return ceil(self.length / self.tokens_per_step)

    def decided(self, first: int) -> float:
        """Positions that are still masked at a step, and so get logits: the mean over the steps from number `first` on."""
        steps = range(first, self.steps)
        return sum(self.length - step * self.tokens_per_step for step in steps) / len(steps) if steps else 0.0


@dataclass(frozen=True)
class RequestShape:
    """One request: tokens of the prompt, tokens to generate, and how. The last block may be short."""

    prompt: int
    gen_length: int
    block_length: int
    tokens_per_step: int

    @property
    def blocks(self) -> list[Block]:
        """Every block, in order."""
        return [
            Block(start, min(self.block_length, self.gen_length - start), self.tokens_per_step)
            for start in range(0, self.gen_length, self.block_length)
        ]


@dataclass(frozen=True)
class Step:
    """`count` forwards of one kind, each of this work for one row."""

    kind: str
    work: Work
    count: float = 1


@dataclass(frozen=True)
class Plan:
    """Forwards of one decoder for one request. prefill: the prompt's own forward, or None where the steps hold it."""

    decoder: str
    tokens: int
    tokens_per_step: int
    prefill: Step | None
    steps: tuple[Step, ...]

    @property
    def forwards(self) -> Mapping[str, int]:
        """Number of forwards by kind."""
        counts: Counter[str] = Counter()
        for step in (*([self.prefill] if self.prefill else []), *self.steps):
            counts[step.kind] += round(step.count)
        return counts

    def seconds(self, roofline: Roofline, rows: float = 1, prefill: bool = True) -> float:
        """The least time for `rows` such requests that share every forward."""
        steps = (self.prefill, *self.steps) if prefill and self.prefill else self.steps
        return sum(step.count * roofline.bound(step.work.times(rows)).seconds for step in steps)

    def tokens_per_second(self, roofline: Roofline, rows: float, prefill: bool = False) -> float:
        """Throughput at most with `rows` in flight; of the decode phase alone unless `prefill`."""
        return rows * self.tokens / self.seconds(roofline, rows, prefill)

    def limited_by(self, roofline: Roofline, rows: float) -> str:
        """ "memory" or "compute": what takes most of the decode phase."""
        spent: Counter[str] = Counter()
        for step in self.steps:
            bound = roofline.bound(step.work.times(rows))
            spent[bound.limited_by] += step.count * bound.seconds  # type: ignore[assignment]
        return spent.most_common(1)[0][0]


@dataclass(frozen=True)
class Crossing:
    """At which concurrencies a decoder is faster than autoregressive decoding, in the decode phase, of 1 to `most`.

    faster_from: the lowest at which it is; None: at none. crossover: the lowest from which it no longer is; None: none up
    to `most`. A mixture may be slower at first too, since one token reads few of its experts.
    """

    faster_from: int | None
    crossover: int | None
    most: int


def crossings(roofline: Roofline, plans: Sequence[Plan], most: int) -> dict[str, Crossing]:
    """Every decoder but the first of `plans` against the first, at every concurrency from 1 to `most`."""
    ar, *others = plans
    concurrencies = range(1, most + 1)
    to_beat = [ar.tokens_per_second(roofline, rows) for rows in concurrencies]
    return {
        plan.decoder: crossing([plan.tokens_per_second(roofline, rows) for rows in concurrencies], to_beat)
        for plan in others
    }


def crossing(rates: Sequence[float], to_beat: Sequence[float]) -> Crossing:
    """Where the first of two throughputs is the higher one; both at every concurrency from 1 on."""
    most = len(to_beat)
    faster = [rows for rows, (rate, other) in enumerate(zip(rates, to_beat, strict=True), 1) if rate > other]
    if not faster:
        return Crossing(None, 1, most)
    return Crossing(faster[0], faster[-1] + 1 if faster[-1] < most else None, most)


def plans(request: RequestShape, context: int | None = None) -> list[Plan]:
    """The forwards of every kind of decoder, autoregressive first.

    context: columns of every row in the decode phase, instead of those that follow from prompt and generated tokens.
    """
    one = replace(request, tokens_per_step=1)
    found = [_autoregressive(request, context), _uncached("uncached-1", one, context)]
    if request.tokens_per_step > 1:
        found.append(_uncached("uncached", request, context))
    return [
        *found,
        _prefix_cache(request, context),
        _dual_cache(request, context),
        _block("block", request, context, commit=False),
        _block("block+commit", request, context, commit=True),
    ]


def _autoregressive(request: RequestShape, context: int | None) -> Plan:
    prefill = Step("prefill", window_work(request.prompt, request.prompt, 1, "causal"))
    # Bytes and FLOPs are linear in what is visible, so the mean context stands for all of them.
    visible = context or request.prompt + (request.gen_length + 1) / 2
    step = Step("denoise", window_work(1, visible, 1), request.gen_length)
    return Plan("ar", request.gen_length, 1, prefill, (step,))


def _uncached(name: str, request: RequestShape, context: int | None) -> Plan:
    canvas = context or request.prompt + request.gen_length
    items = [
        (block.steps, window_work(canvas, canvas, block.decided(0), cached=False)) for block in request.blocks
    ]  # fmt: skip
    return Plan(name, request.gen_length, request.tokens_per_step, None, _condensed("denoise", items))


def _prefix_cache(request: RequestShape, context: int | None) -> Plan:
    canvas = context or request.prompt + request.gen_length
    items = [
        (block.steps - 1, window_work(request.gen_length - block.start, canvas, block.decided(1)))
        for block in request.blocks
    ]
    return _refreshed("prefixcache", request, canvas, items)


def _dual_cache(request: RequestShape, context: int | None) -> Plan:
    canvas = context or request.prompt + request.gen_length
    items = [(block.steps - 1, window_work(block.length, canvas, block.decided(1))) for block in request.blocks]
    return _refreshed("dualcache", request, canvas, items)


def _refreshed(name: str, request: RequestShape, canvas: int, items: Sequence[tuple[int, Work]]) -> Plan:
    """A full forward at every block's start, which also commits, and the other steps of the block."""
    full = [(1, window_work(canvas, canvas, block.length)) for block in request.blocks]
    steps = (*_condensed("refresh", full), *_condensed("denoise", items))
    return Plan(name, request.gen_length, request.tokens_per_step, None, steps)


def _block(name: str, request: RequestShape, context: int | None, commit: bool) -> Plan:
    prompt = request.prompt
    prefill = Step("prefill", window_work(prompt, prompt, 0, "block", request.block_length))
    steps, commits = [], []
    for block in request.blocks:
        visible = context or prompt + block.start + block.length
        steps.append((block.steps, window_work(block.length, visible, block.decided(0))))
        commits.append((1, window_work(block.length, visible, 0)))
    run = (*_condensed("denoise", steps), *(_condensed("commit", commits) if commit else ()))
    return Plan(name, request.gen_length, request.tokens_per_step, prefill, run)


def _condensed(kind: str, items: Sequence[tuple[int, Work]]) -> tuple[Step, ...]:
    """(count, work) of every block as steps: blocks of equal width are one, and no more than `_GROUPS` remain.

    A step of several blocks has their mean work, which is right because bytes and FLOPs are linear in it.
    """
    widths = dict.fromkeys(work.positions for _, work in items)
    size = ceil(len(widths) / _GROUPS)
    numbers = {width: n // size for n, width in enumerate(widths)}
    groups: dict[int, list[tuple[int, Work]]] = {}
    for count, work in items:
        if count:
            groups.setdefault(numbers[work.positions], []).append((count, work))
    return tuple(_mean(kind, group) for group in groups.values())


def _mean(kind: str, items: Sequence[tuple[int, Work]]) -> Step:
    count = sum(number for number, _ in items)
    totals = [sum(column) for column in zip(*(astuple(work.times(number)) for number, work in items), strict=True)]
    return Step(kind, Work(*(total / count for total in totals)), count)
