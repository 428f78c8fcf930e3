"""Whether times are steady: warm-up until two passes agree, and whether anything was compiled since. Standard library only."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: The last two passes differ by at most this share.
TOLERANCE = 0.10

#: Warm-up ends without that after so many passes, and begins none after so many seconds.
MOST_PASSES = 5
MOST_SECONDS = 60.0


@dataclass(frozen=True)
class WarmUp:
    """What warming up took. stationary: whether it ended because times had settled."""

    seconds: tuple[float, ...]
    stationary: bool
    criterion: str

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "seconds": [round(s, 6) for s in self.seconds],
            "stationary": self.stationary,
            "criterion": self.criterion,
        }


def warm_up(run: Callable[[], None], what: str, host: Callable[[], float] = time.perf_counter) -> WarmUp:
    """Call `run` until its times are stationary. `what`: that it runs, for the criterion as it is recorded."""
    seconds: list[float] = []
    stationary = False
    while not stationary and len(seconds) < MOST_PASSES and sum(seconds) < MOST_SECONDS:
        began = host()
        run()
        seconds.append(host() - began)
        stationary = len(seconds) > 1 and abs(seconds[-1] - seconds[-2]) <= TOLERANCE * seconds[-2]
    return WarmUp(
        tuple(seconds),
        stationary,
        f"{what} run until the last two passes differ by at most {TOLERANCE:.0%}; "
        f"at most {MOST_PASSES} passes, none begun after {MOST_SECONDS:g} s",
    )


def compiled_graphs() -> int:
    """Graphs that torch has compiled in this process until now; 0 where its compiler was never imported."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else int(dynamo.counters["stats"]["unique_graphs"])
