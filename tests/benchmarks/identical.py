"""A/A: how often identical pairs of runs are told apart, by the comparison that the product makes of two stored runs.

One run is stored and read back; all others are its rows with other seconds and scores, since storing 400 takes minutes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dllm_audit.analysis.pairing import Comparison, compare_rows
from dllm_audit.analysis.summary import summarise_rows
from dllm_audit.store.database import Store
from tests.benchmarks.audits import ALPHA, SEED, error_limit
from tests.conftest import add_run, generation, run_row

PAIRS = 200


@dataclass(frozen=True)
class IdenticalPairs:
    """Of so many comparisons of a configuration with itself, how many found a difference, by what found it.

    faster_or_slower, worse: the verdicts. interval_excludes_one: the interval of the speed, before it is held against what
    runs of one configuration differ by. mcnemar: a p-value below 5 %.
    """

    pairs: int
    faster_or_slower: int
    worse: int
    interval_excludes_one: int
    mcnemar: int


def compare_identical_pairs(
    pairs: int, documents: int, *, drift: float, noise: float, seed: int = SEED
) -> IdenticalPairs:
    """Compare `pairs` of runs of one sampling decoder with itself.

    drift, noise: standard deviations of the log of the seconds, of a run as a whole and of each request. A document has
    a chance of its own to be answered correctly, and both runs draw from it anew.
    """
    generator = np.random.default_rng(seed)
    stored = _stored_run(documents)
    found = [_compare(stored, drift, noise, generator) for _ in range(pairs)]
    bounds = [(c.speed.low or 0.0, c.speed.high or np.inf) for c in found]
    qualities = [c.quality for c in found if c.quality is not None]
    return IdenticalPairs(
        pairs,
        sum(c.speed_verdict in ("faster", "slower") for c in found),
        sum(q.verdict == "worse" for q in qualities),
        sum(low > 1 or high < 1 for low, high in bounds),
        sum(q.p_value is not None and q.p_value < ALPHA for q in qualities),
    )


@dataclass(frozen=True)
class _Rows:
    """One run as the store gives it back."""

    run: Mapping[str, Any]
    requests: Sequence[Mapping[str, Any]]
    answers: Sequence[Mapping[str, Any]]
    metrics: Sequence[Mapping[str, Any]]


def _stored_run(documents: int) -> _Rows:
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "identical.duckdb", write=True) as store:
        results = [generation(text=f"#### {n}", seconds={"denoise": 1.0}) for n in range(documents)]
        add_run(store, run_row("one"), results, [n % 2 == 0 for n in range(documents)], makespan=float(documents))
        return _Rows(store.run("one"), store.requests("one"), store.answers("one"), store.metrics("one"))


def _compare(stored: _Rows, drift: float, noise: float, generator: np.random.Generator) -> Comparison:
    documents = len(stored.requests)
    lengths, chances = np.exp(0.4 * generator.standard_normal(documents)), generator.beta(2, 2, documents)
    sides = []
    for name in ("candidate", "baseline"):
        pace = np.exp(drift * generator.standard_normal())
        seconds = (pace * lengths * np.exp(noise * generator.standard_normal(documents))).tolist()
        right = generator.random(documents) < chances
        run = {**stored.run, "run_id": name, "makespan_seconds": sum(seconds)}
        requests = [
            {**row, "total_seconds": s, "denoise_seconds": s, "answered_tokens": int(np.ceil(20 * length))}
            for row, s, length in zip(stored.requests, seconds, lengths, strict=True)
        ]
        answers = [{**row, "value": float(right[row["doc_id"]])} for row in stored.answers]
        metrics = [{**row, "value": float(right.mean())} for row in stored.metrics]
        sides.append((summarise_rows(run, requests, [], answers, metrics, {1}), requests, answers))
    (ours, our_requests, our_answers), (theirs, their_requests, their_answers) = sides
    return compare_rows(ours, theirs, (our_requests, their_requests), (our_answers, their_answers))


def print_identical_pairs() -> None:
    print(
        f"\nA/A: {PAIRS} identical pairs of runs, compared as stored runs are; at most {error_limit(PAIRS):.1%} may differ"
    )
    print(
        f"{'documents':>9} {'drift':>6} {'noise':>6} {'faster or slower':>17} {'worse':>6} {'McNemar < 5 %':>14} "
        f"{'interval of one run each excludes 1':>36}"
    )
    for documents, drift, noise in ((40, 0.0, 0.1), (40, 0.03, 0.1), (100, 0.03, 0.1)):
        found = compare_identical_pairs(PAIRS, documents, drift=drift, noise=noise)
        shares = (found.faster_or_slower, found.worse, found.mcnemar, found.interval_excludes_one)
        told, worse, mcnemar, bare = (n / found.pairs for n in shares)
        print(
            f"{documents:>9} {drift:>6} {noise:>6} {told:>17.1%} {worse:>6.1%} {mcnemar:>14.1%} {bare:>36.1%}",
            flush=True,
        )
