"""The clock of a run: a gapless sequence of labelled intervals, and what each request in flight makes of them.

Every interval between two marks belongs to exactly one label and to the requests that took part in it. For a request in
flight that took no part, the interval is `waiting`; so is the time in which a request that has arrived queues for a row.
So a request's items add up to its total by construction of the marks, and the total is checked against a clock of its own
(start and stop times), which the tests do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from dllm_audit.records import TIME_ITEMS

if TYPE_CHECKING:
    import torch


class Timer(Protocol):
    """Where time is read. `now` returns a mark; `seconds(a, b)` the time between two marks, valid after `settle`."""

    def now(self) -> Any: ...

    def settle(self) -> None: ...

    def seconds(self, start: Any, stop: Any) -> float: ...


class HostTimer:
    """`perf_counter_ns`, for devices whose work is done when the call returns (the CPU)."""

    def now(self) -> int:
        return time.perf_counter_ns()

    def settle(self) -> None:
        return None

    def seconds(self, start: int, stop: int) -> float:
        return (stop - start) / 1e9


class CudaTimer:
    """Events on the device's current stream, read only after `settle`, so that marking never waits for the device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def now(self) -> Any:
        import torch

        with torch.cuda.device(self.device):
            event = torch.cuda.Event(enable_timing=True)
            event.record(torch.cuda.current_stream(self.device))
        return event

    def settle(self) -> None:
        import torch

        torch.cuda.synchronize(self.device)

    def seconds(self, start: Any, stop: Any) -> float:
        return start.elapsed_time(stop) / 1e3


class MpsTimer(HostTimer):
    """Apple's devices have no events that can be read here: wait for the device at every mark."""

    def now(self) -> int:
        import torch

        torch.mps.synchronize()
        return time.perf_counter_ns()


def timer_for(device: torch.device) -> Timer:
    """The timer that is right for a device: its own events, or the host's clock where work is done when a call returns."""
    if device.type == "cuda":
        return CudaTimer(device)
    return MpsTimer() if device.type == "mps" else HostTimer()


@dataclass
class Stopwatch:
    """What one request has seen so far: labelled intervals between marks, without gaps.

    queued_seconds: how long it had been there before the first of them.
    until_first_token: how many of them had passed when its first token was final; until_closes: when each block closed.
    """

    intervals: list[tuple[str, Any, Any]] = field(default_factory=list)
    queued_seconds: float = 0.0
    until_first_token: int | None = None
    until_closes: list[int] = field(default_factory=list)


class Clock:
    """Marks of one run. `mark(label, ids)` closes the interval since the last mark.

    host: seconds of the host's clock, for what no mark tells: time outside the timed region, and arrivals.
    """

    def __init__(self, timer: Timer, host: Callable[[], float] = time.perf_counter) -> None:
        self.timer = timer
        self.open: dict[str, Stopwatch] = {}
        self._host = host
        self._last = timer.now()
        self._began = host()
        self._outside = 0.0
        self._paused_at: float | None = None
        self._run: list[tuple[str, Any, Any]] = []
        self.totals: dict[str, float] = {}

    def start(self, id: str, queued_seconds: float = 0.0) -> None:
        """Take on request `id`: its clock starts now, or has run for `queued_seconds` while it queued."""
        self.mark("host", ())
        self.open[id] = Stopwatch(queued_seconds=queued_seconds)

    def start_over(self, id: str) -> None:
        """What was done for `id` so far came to nothing: it has waited until now."""
        watch = self.open[id]
        watch.intervals = [("waiting", start, stop) for _, start, stop in watch.intervals]
        watch.until_first_token = None
        watch.until_closes.clear()

    def mark(self, label: str, ids: Iterable[str] | None) -> tuple[Any, Any]:
        """Close the interval since the last mark as `label`, worked on by `ids` (`None`: by all in flight)."""
        now = self.timer.now()
        took_part = self.open.keys() if ids is None else set(ids)
        for id, watch in self.open.items():
            watch.intervals.append((label if id in took_part else "waiting", self._last, now))
        self._run.append((label, self._last, now))
        interval = (self._last, now)
        self._last = now
        return interval

    def first_token(self, id: str) -> None:
        """The first answer position of `id` in reading order is final, as of the last mark."""
        watch = self.open[id]
        if watch.until_first_token is None:
            watch.until_first_token = len(watch.intervals)

    def block_closed(self, id: str) -> None:
        """A block of `id` is complete and could be delivered, as of the last mark."""
        watch = self.open[id]
        watch.until_closes.append(len(watch.intervals))

    def stop(self, id: str) -> Stopwatch:
        """The text of `id` is back, as of the last mark."""
        return self.open.pop(id)

    def elapsed(self) -> float:
        """Seconds of the timed region up to now by the host's clock, which needs no wait for the device."""
        now = self._host() if self._paused_at is None else self._paused_at
        return now - self._began - self._outside

    def idle_until(self, moment: float) -> None:
        """Sleep until `elapsed` is `moment`. The time is the run's and nobody's in particular."""
        self.mark("host", ())
        while (left := moment - self.elapsed()) > 0:
            time.sleep(left)
        self.mark("idle", ())

    def pause(self) -> None:
        """Leave the timed region, for example to store a result. Time until `resume` belongs to nobody.

        Whoever has left already stays outside: an interruption while a result was stored books nothing.
        """
        if self._paused_at is not None:
            return
        self.mark("host", None)
        self.timer.settle()
        for label, start, stop in self._run:
            self.totals[label] = self.totals.get(label, 0.0) + self.timer.seconds(start, stop)
        self._run.clear()
        self._paused_at = self._host()

    def resume(self) -> None:
        """Enter the timed region again."""
        assert self._paused_at is not None, "only a paused clock can be resumed"
        self._outside += self._host() - self._paused_at
        self._paused_at = None
        self._last = self.timer.now()

    def restart(self) -> None:
        """Begin the timed region: what was marked so far is forgotten."""
        self._run.clear()
        self.totals.clear()
        self._outside = 0.0
        self._began = self._host()
        self._last = self.timer.now()

    @property
    def total(self) -> float:
        """Seconds of the timed region up to the last pause."""
        return sum(self.totals.values())

    @property
    def paused_seconds(self) -> float:
        """Time spent outside the timed region so far."""
        return self._outside

    def items(self, watch: Stopwatch) -> dict[str, float]:
        """Seconds of a stopped request by item, and "total", their sum. Call between pause and resume."""
        seconds = dict.fromkeys(TIME_ITEMS, 0.0)
        seconds["waiting"] = watch.queued_seconds
        for label, start, stop in watch.intervals:
            seconds[label] += self.timer.seconds(start, stop)
        seconds["total"] = sum(seconds.values())
        return seconds

    def ttft(self, watch: Stopwatch) -> float | None:
        """Seconds from its arrival to the first final token, time outside the timed region left out."""
        if watch.until_first_token is None:
            return None
        return self._moments(watch, [watch.until_first_token])[0]

    def closes(self, watch: Stopwatch) -> tuple[float, ...]:
        """Seconds from its arrival to the close of each block, time outside the timed region left out."""
        return self._moments(watch, watch.until_closes)

    def _moments(self, watch: Stopwatch, counts: Sequence[int]) -> tuple[float, ...]:
        """Seconds from the arrival of a request until so many of its intervals had passed; `counts` ascend."""
        moments, passed, seconds = [], 0, watch.queued_seconds
        for count in counts:
            seconds += sum(self.timer.seconds(start, stop) for _, start, stop in watch.intervals[passed:count])
            passed = count
            moments.append(seconds)
        return tuple(moments)
