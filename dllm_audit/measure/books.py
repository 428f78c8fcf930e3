"""The books of a run: count times separately measured cost per forward, plus the host's items, against the wall time.

When they do not close, either the counts are wrong, or time goes somewhere that nobody measures, or the machine changed
between the run and the measurement of its parts. Each of them means that the run's times should not be relied on.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dllm_audit.records import FORWARD_KINDS, EngineLog, ForwardShape

#: Items of the clock that are no forward pass: they enter the books as they were measured in the run.
HOST_ITEMS = ("tokenise", "sampling", "host", "detokenise", "idle")

#: At most so many widths of a kind are measured; the cost of those between is interpolated.
_WIDTHS = 5


@dataclass(frozen=True)
class Entry:
    """Forwards of one kind: how many, what they took in the run, and what count x separate cost says. Seconds."""

    kind: str
    count: int
    in_run: float
    predicted: float


@dataclass(frozen=True)
class Books:
    """wall_seconds: by a clock outside the engine, storing left out. host_seconds: measured items that are no forward."""

    entries: tuple[Entry, ...]
    host_seconds: float
    wall_seconds: float

    @property
    def predicted_seconds(self) -> float:
        """What the parts say the run should have taken."""
        return sum(entry.predicted for entry in self.entries) + self.host_seconds

    @property
    def discrepancy(self) -> float:
        """(predicted - wall) / wall."""
        return (self.predicted_seconds - self.wall_seconds) / self.wall_seconds

    def as_dict(self) -> dict:
        return {
            "predicted_seconds": self.predicted_seconds,
            "wall_seconds": self.wall_seconds,
            "host_seconds": self.host_seconds,
            "discrepancy": self.discrepancy,
            "forwards": [vars(entry) for entry in self.entries],
        }


def close_books(
    log: EngineLog, wall_seconds: float, costs: Callable[[Sequence[ForwardShape], float], list[float] | None]
) -> Books | None:
    """Measure the parts of a run and add them up. None when nothing ran or the backend cannot measure its forwards.

    costs(shapes, seconds): seconds of one forward of each shape, measured for about so long: a quarter of the run's
    time, but two seconds for short runs.
    """
    chosen = _representative(log.shapes)
    measured = costs(chosen, max(2.0, wall_seconds / 4)) if chosen else None
    if not measured or wall_seconds <= 0:
        return None
    known: dict[tuple[str, int], list[tuple[int, float]]] = {}
    for shape, seconds in zip(chosen, measured, strict=True):
        known.setdefault((shape.kind, shape.rows), []).append((shape.width, seconds))
    entries = []
    for kind in FORWARD_KINDS:
        shapes = [shape for shape in log.shapes if shape.kind == kind]
        if shapes:
            predicted = sum(shape.count * _at(known[kind, shape.rows], shape.width) for shape in shapes)
            entries.append(Entry(kind, sum(s.count for s in shapes), sum(s.seconds for s in shapes), predicted))
    return Books(tuple(entries), _host(log.seconds), wall_seconds)


#: A foreign engine's clock may differ from ours by this share, or up to `_FAR` where that is little time: it makes itself ready.
_NEAR, _FAR, _READY_SECONDS = 0.05, 0.25, 0.5


def own_clock_books(engine_seconds: float, wall_seconds: float) -> Books | None:
    """The books of a foreign engine whose own clock says another time than ours: they do not close. None where both agree.

    engine_seconds: until its last answer, as it says. Its costs and counts mean nothing then, whatever they are.
    """
    off = abs(engine_seconds - wall_seconds)
    if off <= _NEAR * wall_seconds or (off <= _FAR * wall_seconds and off <= _READY_SECONDS):
        return None
    return Books((), engine_seconds, wall_seconds)


def _host(seconds: Mapping[str, float]) -> float:
    return sum(seconds.get(item, 0.0) for item in HOST_ITEMS)


def _representative(shapes: Sequence[ForwardShape]) -> list[ForwardShape]:
    """For each kind and number of rows, the narrowest and widest shape and some between."""
    groups: dict[tuple[str, int], list[ForwardShape]] = {}
    for shape in sorted(shapes, key=lambda s: s.width):
        groups.setdefault((shape.kind, shape.rows), []).append(shape)
    chosen = []
    for group in groups.values():
        last = len(group) - 1
        places = {round(last * i / (_WIDTHS - 1)) for i in range(_WIDTHS)} if last else {0}
        chosen += [group[place] for place in sorted(places)]
    return chosen


def _at(points: list[tuple[int, float]], width: int) -> float:
    """Seconds at `width`, between the two measured widths around it."""
    widths = [w for w, _ in points]
    place = bisect.bisect_left(widths, width)
    if place < len(points) and widths[place] == width:
        return points[place][1]
    (w0, s0), (w1, s1) = points[place - 1], points[place]
    return s0 + (s1 - s0) * (width - w0) / (w1 - w0)
