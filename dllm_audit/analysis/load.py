"""How requests came to a run, what was in flight, and how its answers reached whoever waited for them.

What streams from a block decoder are blocks. Their latency and their rate are its streaming figures; the reciprocal of a
time per token is not, since its tokens do not come one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dllm_audit.analysis.figures import Figure, ratio
from dllm_audit.analysis.rows import asks_for_likelihoods, sound, stands_alone
from dllm_audit.measure.load import load_words
from dllm_audit.records import ForwardShape
from dllm_audit.statistics.latency import latency_percentile

PERCENTILES = (50.0, 90.0, 95.0, 99.0)

MOST_BARS = 8
"""So many numbers of rows are told apart where the batch is shown."""

_NOT_RECORDED = "not recorded when this was run"


@dataclass(frozen=True)
class Batch:
    """Forwards that so many rows took part in: how many, and their share of all forwards and of all forward time."""

    rows: int
    forwards: int
    share: float
    time_share: float


@dataclass(frozen=True)
class LoadFigures:
    """When requests came, and what was really in flight.

    kind, arrival_rate: as stored. rows: requests that could be in flight together, None where it was not recorded.
    batches: by rows of a forward. mean_rows: rows of a mean forward.
    ramp, drain, idle: shares of the makespan: until all rows were first in flight; from the last moment that they were;
    in which no request was there. queue: percentiles of the time that requests queued for a row.
    compiled_graphs: that torch compiled inside the timed region.
    """

    kind: str
    arrival_rate: float | None
    rows: int | None
    batches: tuple[Batch, ...]
    mean_rows: Figure
    ramp: Figure
    drain: Figure
    idle: Figure
    queue: Mapping[float, Figure]
    compiled_graphs: int

    @property
    def histogram(self) -> tuple[tuple[str, float, float], ...]:
        """(rows, share of the forwards, share of their time); where rows vary much, neighbouring numbers together."""
        if len(self.batches) <= MOST_BARS:
            return tuple((str(batch.rows), batch.share, batch.time_share) for batch in self.batches)
        low, high = self.batches[0].rows, self.batches[-1].rows
        width = -(-(high - low + 1) // MOST_BARS)
        found = []
        for first in range(low, high + 1, width):
            last = min(first + width - 1, high)
            inside = [batch for batch in self.batches if first <= batch.rows <= last]
            if inside:
                shares = sum(batch.share for batch in inside), sum(batch.time_share for batch in inside)
                found.append((f"{first}-{last}" if last > first else str(first), *shares))
        return tuple(found)

    @property
    def words(self) -> str:
        """For example "closed loop", "offline", "2 arrivals/s"."""
        return load_words(self.kind, self.arrival_rate) or "closed loop"

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know before using the figures of the run."""
        notes = []
        if self.kind == "open":
            notes.append(
                f"Requests arrived by chance, {self.arrival_rate:g} a second on average: where the engine keeps up, throughput "
                "says how fast they came, not how fast it decodes."
            )
        if self.compiled_graphs:
            notes.append(
                f"torch compiled {self.compiled_graphs} graphs inside the timed region, so some requests waited for a compiler: "
                "warm-up did not meet every shape."
            )
        return tuple(notes)


@dataclass(frozen=True)
class Streaming:
    """How answers reach a client: the first text of each, and of a block decoder the blocks.

    delivered: percentiles of the time until the first answer text. blocks: how many closed.
    block_latency: percentiles over requests of the seconds that a block of theirs took, from being taken on to the close of
    the last, divided by the blocks; mean_block_latency: all those seconds by all blocks. blocks_per_second: of the whole run.
    """

    delivered: Mapping[float, Figure]
    blocks: int
    block_latency: Mapping[float, Figure]
    mean_block_latency: Figure
    blocks_per_second: Figure


def load_figures(
    run: Mapping[str, Any],
    done: Sequence[Mapping[str, Any]],
    shapes: Sequence[ForwardShape],
    sittings: Sequence[Mapping[str, Any]],
    makespan: Figure,
) -> LoadFigures:
    """The load of a run from its rows. `done`: answered requests. `sittings`: those whose log was stored."""
    forwards = sum(shape.count for shape in shapes)
    complete = {row["sitting"] for row in done} <= {row["sitting"] for row in sittings} and bool(sittings)
    known = [row["rows"] for row in sittings if row["rows"] is not None]

    def share(column: str, never: str) -> Figure:
        values = [row[column] for row in sittings]
        if not complete or not all(value is None or sound(value) for value in values):
            return Figure(None, "share", "derived", reason=_NOT_RECORDED)
        if None in values:
            return Figure(None, "share", "derived", reason=never)
        return ratio(sum(values), makespan.value or 0.0, "share", "derived", "the time of the whole run is not known")

    rows = max(known, default=None)
    never = f"not applicable: {run['concurrency'] if rows is None else rows} requests were never in flight together"
    never = never if done else "no request was answered"
    return LoadFigures(
        kind=str(run.get("load") or "closed"),
        arrival_rate=run.get("arrival_rate"),
        rows=rows,
        batches=_batches(shapes),
        mean_rows=ratio(
            sum(shape.count * shape.rows for shape in shapes), forwards, "rows/forward", "measured", _NOT_RECORDED
        ),
        ramp=share("ramp_seconds", never),
        drain=share("drain_seconds", never),
        idle=share("idle_seconds", never),
        queue=percentiles(run, _times(done, "queue_seconds"), "queue"),
        compiled_graphs=sum(row["compiled_graphs"] for row in sittings),
    )


def streaming(run: Mapping[str, Any], done: Sequence[Mapping[str, Any]], makespan: Figure) -> Streaming:
    """How the answers of a run's answered requests reached a client."""
    delivered = percentiles(run, _times(done, "delivered_seconds"), "delivery of an answer")
    closed = [(seconds, blocks) for seconds, blocks in map(_blocks, done) if blocks]
    blocks, seconds = sum(n for _, n in closed), sum(s for s, _ in closed)
    why = _NOT_RECORDED
    if asks_for_likelihoods(run):
        why = "not applicable: given answers were scored, so nothing is delivered"
    elif run["kind"] == "autoregressive":
        why = "not applicable: an autoregressive decoder delivers tokens"
    unknown = Figure(None, "s", "measured", reason=why)
    if not blocks:
        return Streaming(
            delivered,
            0,
            dict.fromkeys(PERCENTILES, unknown),
            unknown,
            Figure(None, "blocks/s", "measured", reason=why),
        )
    return Streaming(
        delivered,
        blocks,
        percentiles(run, [s / n for s, n in closed], "block"),
        ratio(seconds, blocks, "s", "measured", why),
        ratio(blocks, makespan.value or 0.0, "blocks/s", "measured", "the time of the whole run is not known"),
    )


def _batches(shapes: Sequence[ForwardShape]) -> tuple[Batch, ...]:
    by_rows: dict[int, list[ForwardShape]] = {}
    for shape in shapes:
        by_rows.setdefault(shape.rows, []).append(shape)
    counts = {rows: sum(shape.count for shape in alike) for rows, alike in by_rows.items()}
    seconds = {rows: sum(shape.seconds for shape in alike) for rows, alike in by_rows.items()}
    all_forwards, all_seconds = sum(counts.values()) or 1, sum(seconds.values()) or 1.0
    return tuple(
        Batch(rows, counts[rows], counts[rows] / all_forwards, seconds[rows] / all_seconds) for rows in sorted(counts)
    )


def _times(rows: Sequence[Mapping[str, Any]], column: str) -> list[float]:
    return [float(row[column]) for row in rows if sound(row.get(column))]


def _blocks(row: Mapping[str, Any]) -> tuple[float, int]:
    """(seconds from being taken on to the close of the last block, blocks); (0, 0) where none is known."""
    closes = row.get("block_seconds") or []
    if not closes or not all(sound(value) for value in closes):
        return 0.0, 0
    return max(0.0, closes[-1] - (row.get("queue_seconds") or 0.0)), len(closes)


def percentiles(run: Mapping[str, Any], seconds: Sequence[float], what: str) -> dict[float, Figure]:
    """Percentiles of times of requests, with intervals where requests are independent. `what`: that was measured."""
    if not seconds:
        return {p: Figure(None, "s", "measured", reason=f"no {what} was measured") for p in PERCENTILES}
    figures = {}
    for p in PERCENTILES:
        found = latency_percentile(seconds, p)
        if not stands_alone(run):
            reason = "interval unknown: requests share forwards or wait for one another"
            figures[p] = Figure(found.seconds, "s", "measured", reason=reason)
        elif found.low is None or found.high is None:
            reason = f"interval unknown: {found.requests} requests do not bound it"
            figures[p] = Figure(found.seconds, "s", "measured", found.low, found.high, reason=reason)
        else:
            basis = f"{found.requests} requests of this run"
            figures[p] = Figure(found.seconds, "s", "measured", found.low, found.high, basis)
    return figures
