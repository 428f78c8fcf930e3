"""How requests come to an engine: each when a row is free, all at once, or by chance at a stated rate.

Standard library only. A load decides when a request arrives; how many are decoded together at most is the concurrency.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from typing import Any

from dllm_audit.errors import UsageError, did_you_mean

LOADS = ("closed", "offline", "open")

LEAST_RATE = 1e-5
"""Requests per second: about one a day. Below it a run waits without end, or longer than a clock can tell."""


@dataclass(frozen=True)
class Load:
    """When requests arrive.

    kind: "closed" hands a request over when a row is free for it, so that nobody queues; "offline" hands all over at
    once; "open" at random moments, `arrival_rate` requests per second on average (Poisson), whatever the engine is at.
    Under the last two a request's clock starts when it arrives, and it waits until a row is free.
    """

    kind: str = "closed"
    arrival_rate: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in LOADS:
            raise UsageError(f"There is no load {self.kind!r}. {did_you_mean(self.kind, LOADS)}")
        if self.kind == "open" and self.arrival_rate is None:
            raise UsageError("An open loop needs the requests that arrive per second: say --arrival-rate R.")
        if self.kind != "open" and self.arrival_rate is not None:
            raise UsageError(
                f"arrival_rate={self.arrival_rate:g} says when requests arrive, and load {self.kind!r} says otherwise. "
                "Leave one of them out."
            )
        if self.arrival_rate is not None and not (isfinite(self.arrival_rate) and self.arrival_rate > 0):
            raise UsageError(f"arrival_rate={self.arrival_rate:g}: requests must arrive at a rate above 0 per second.")
        if self.arrival_rate is not None and self.arrival_rate < LEAST_RATE:
            raise UsageError(
                f"arrival_rate={self.arrival_rate:g}: that is less than a request a day, and nobody waits for it. "
                f"Give at least {LEAST_RATE:g}."
            )

    @property
    def words(self) -> str:
        """What to say of it beside the concurrency: nothing of a closed loop."""
        return load_words(self.kind, self.arrival_rate)

    def arrivals(self, ordinals: Iterable[int], seed: int) -> tuple[float, ...] | None:
        """Seconds after the start at which the requests of these places arrive, in their order; None in a closed loop.

        The pause before a request hangs on its place and the seed alone, so that every decoder meets the same arrivals.
        """
        if self.kind == "closed":
            return None
        moment, moments = 0.0, []
        for ordinal in ordinals:
            if self.arrival_rate is not None:
                moment += random.Random(f"{seed} arrival {ordinal}").expovariate(self.arrival_rate)
            moments.append(moment)
        return tuple(moments)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"kind": self.kind, "arrival_rate": self.arrival_rate}


CLOSED = Load()


def load_words(kind: str, arrival_rate: float | None) -> str:
    """A load in words, as stored: "offline", "2 arrivals/s"; nothing of a closed loop."""
    if kind == "open" and arrival_rate is not None:
        return f"{arrival_rate:g} arrivals/s"
    return "" if kind == "closed" else kind
