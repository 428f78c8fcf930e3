"""What an engine has run so far, by the shape of its forwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dllm_audit.measure.clock import Clock, Timer
from dllm_audit.records import EngineLog, ForwardShape

#: Called before each result with all forwards up to it, outside every clock.
OnShapes = Callable[[tuple[ForwardShape, ...]], None]


@dataclass
class ShapeTally:
    """Forwards of one shape: positions decided, columns visible and rows in flight, summed.

    intervals: the marks of those whose seconds were not read yet.
    """

    intervals: list[tuple[Any, Any]] = field(default_factory=list)
    decided: int = 0
    keys: int = 0
    in_flight: int = 0
    count: int = 0
    seconds: float = 0.0

    def read(self, timer: Timer) -> None:
        """Add up the intervals and forget their marks. Call when the timer has settled."""
        self.count += len(self.intervals)
        self.seconds += sum(timer.seconds(*interval) for interval in self.intervals)
        self.intervals.clear()


#: Tallies by (kind, width, rows).
Tallies = Mapping[tuple[str, int, int], ShapeTally]


def shapes_so_far(tallies: Tallies, clock: Clock) -> tuple[ForwardShape, ...]:
    """The forwards up to the pause in which the clock is."""
    for tally in tallies.values():
        tally.read(clock.timer)
    return tuple(
        ForwardShape(kind, width, rows, tally.count, tally.seconds, tally.decided, tally.keys, tally.in_flight)
        for (kind, width, rows), tally in tallies.items()
    )


def shapes_since(now: Sequence[ForwardShape], before: Sequence[ForwardShape]) -> list[ForwardShape]:
    """What ran between two states of the same run. Shapes that several groups of requests share are one."""
    return _summed(((1, now), (-1, before)))


def _summed(parts: Iterable[tuple[int, Sequence[ForwardShape]]]) -> list[ForwardShape]:
    """One shape for all that are alike, each counted with the sign of its part; those that add up to nothing are left out."""
    numbers: dict[tuple[str, int, int], list[float]] = {}
    counted: set[tuple[str, int, int]] = set()
    for sign, shapes in parts:
        for shape in shapes:
            key = (shape.kind, shape.width, shape.rows)
            sums = numbers.setdefault(key, [0, 0.0, 0, 0, 0])
            for n, value in enumerate((shape.count, shape.seconds, shape.decided, shape.keys, shape.in_flight or 0)):
                sums[n] += sign * value
            if shape.in_flight is not None:
                counted.add(key)
    return [
        ForwardShape(*key, int(count), seconds, int(decided), int(keys), int(in_flight) if key in counted else None)
        for key, (count, seconds, decided, keys, in_flight) in numbers.items()
        if count
    ]


def engine_log(tallies: Tallies, clock: Clock) -> EngineLog:
    """What was run until now, read from the clock's marks."""
    clock.pause()
    return EngineLog(shapes_so_far(tallies, clock), clock.total, clock.paused_seconds, dict(clock.totals))


def join_logs(logs: Sequence[EngineLog]) -> EngineLog:
    """One log of what ran one after the other; what lay between belongs to none of it."""
    seconds: dict[str, float] = {}
    for log in logs:
        for label, value in log.seconds.items():
            seconds[label] = seconds.get(label, 0.0) + value
    return EngineLog(
        tuple(_summed((1, log.shapes) for log in logs)),
        sum(log.makespan_seconds for log in logs),
        sum(log.store_seconds for log in logs),
        seconds,
        rows=max((log.rows for log in logs if log.rows is not None), default=None),
        ramp_seconds=_sum_if_known([log.ramp_seconds for log in logs]),
        drain_seconds=_sum_if_known([log.drain_seconds for log in logs]),
        compiled_graphs=sum(log.compiled_graphs for log in logs),
        notes=tuple(dict.fromkeys(note for log in logs for note in log.notes)),
    )


def _sum_if_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None
