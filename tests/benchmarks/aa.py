"""A/A for real: how often runs of one configuration, made one after another, are called different.

On 2026-11-30 on two shared x86-64 cores at load 0.9: of 20 pairs none was called faster, slower or worse, all answers were
identical, and no books were far off. A run was 0.923x to 1.189x as fast as the next. The interval over the requests of one run
each excluded 1 in 11 of the 20: it does not say how runs differ, which is why no verdict is given by it alone.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from math import sqrt
from pathlib import Path

from dllm_audit.analysis.pairing import Comparison, compare_rows
from dllm_audit.analysis.summary import summarise
from dllm_audit.cli.main import main as dllm_audit
from dllm_audit.store.database import Store

PAIRS, DOCUMENTS, ALPHA = 20, 10, 0.05

#: A decoder whose work is the same every time, so that whatever differs is the machine.
COMMAND = ("run", "--backend", "dualcache", "--threshold", "0.9", "--task", "gsm_mini", "--limit", str(DOCUMENTS))
QUICK = ("--trace", "0", "--no-roofline", "--no-beside-generate")


def main() -> None:
    """20 pairs of identical runs of dualcache on tiny-mdm, 10 documents each; at most alpha and two standard errors may differ"""
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "results.duckdb"
        try:
            dllm_audit([*COMMAND, "--repeats", str(2 * PAIRS), *QUICK, "--db", str(database)])
        except SystemExit as end:
            if end.code:
                raise
        with Store.open(database) as store:
            runs = [str(run["run_id"]) for run in store.runs()]
            pairs = [_compared(store, ours, theirs) for ours, theirs in zip(runs[::2], runs[1::2], strict=True)]
    allowed = PAIRS * ALPHA + 2 * sqrt(PAIRS * ALPHA * (1 - ALPHA))
    for what, found in (
        ("speed verdict faster or slower", sum(pair.speed_verdict in ("faster", "slower") for pair in pairs)),
        ("interval of the speed excludes 1", sum(_excludes_one(pair) for pair in pairs)),
        ("quality worse", sum(pair.quality is not None and pair.quality.verdict == "worse" for pair in pairs)),
        ("answers not identical", sum(not pair.identical for pair in pairs)),
    ):
        print(f"{what:<34} {found:>2} of {PAIRS}  (alpha allows {allowed:.1f})")
    speeds = sorted(pair.speed.value or 0.0 for pair in pairs)
    print(
        f"speed of a run over the next: {speeds[0]:.3f}x to {speeds[-1]:.3f}x, {_unreliable(pairs)} of {PAIRS} with books far off"
    )
    print(f"load average afterwards: {os.getloadavg()[0]:.1f}")


def _compared(store: Store, ours: str, theirs: str) -> Comparison:
    """Two runs by themselves, as if no others had been made."""
    return compare_rows(
        summarise(store, ours),
        summarise(store, theirs),
        (store.requests(ours), store.requests(theirs)),
        (store.answers(ours), store.answers(theirs)),
    )


def _excludes_one(pair: Comparison) -> bool:
    low, high = pair.speed.low, pair.speed.high
    return low is not None and high is not None and not low <= 1 <= high


def _unreliable(pairs: Sequence[Comparison]) -> int:
    return sum(pair.unreliable for pair in pairs)
