"""Latency at equal accuracy: what a decoder takes per request once it is set to be as accurate as another one.

A decoder with a threshold is a curve of latency against accuracy, measured at a few settings. Between two of them
the straight line is not a guess: sending a share of the requests to each setting is a decoder on that line. So the latency
at an accuracy is the smallest that a setting at least as accurate, or a line between two settings, has there: the lower
convex hull of the curve. Outside the measured accuracies there is no line, and no answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dllm_audit.statistics.throughput import draw_counts

MINIMUM_DOCUMENTS = 50
"""Percentiles of draws from fewer documents are too narrow to be shown: from 50 they cover 89 % in simulation."""


@dataclass(frozen=True)
class MeasuredSetting:
    """One setting on every document, in the same order for all settings: right or wrong, and seconds."""

    name: str
    correct: Sequence[bool]
    seconds: Sequence[float]


@dataclass(frozen=True)
class IsoAccuracyLatency:
    """Mean seconds of a request at `accuracy` (0..1).

    seconds: None where no measured setting reaches the accuracy, or all exceed it; `reason` then says so.
    between: the names of the two settings on whose line it lies, the less accurate one first; twice the same where one
    setting alone does it.
    low, high: interval over documents; None at an end that leaves the measured range, or without enough documents.
    """

    accuracy: float
    seconds: float | None
    low: float | None
    high: float | None
    between: tuple[str, str] | None
    documents: int
    confidence: float
    reason: str


def iso_accuracy_latency(
    settings: Sequence[MeasuredSetting],
    accuracy: float | Sequence[bool],
    *,
    confidence: float = 0.95,
    draws: int = 4000,
    generator: np.random.Generator,
) -> IsoAccuracyLatency:
    """Mean latency of a decoder at an accuracy, interpolated between its measured settings.

    accuracy: a share in 0..1, or the right-or-wrong of a reference on the same documents. With a reference its
    accuracy is drawn along with the documents, so the interval holds for "as accurate as the reference".
    The interval is over documents, of one run each: it says nothing of how runs differ.
    Raises ValueError for no settings, unequal numbers of documents, or values that are no times or shares.
    Source: percentile bootstrap over documents, Davison and Hinkley 1997, section 5.3.
    """
    if not settings:
        raise ValueError("Need at least one measured setting.")
    given = None if isinstance(accuracy, int | float) else np.asarray(accuracy)
    correct = [np.asarray(setting.correct) for setting in settings]
    seconds = [np.asarray(setting.seconds, dtype=float) for setting in settings]
    judged = correct if given is None else [*correct, given]
    documents = len(correct[0])
    if not documents or any(len(column) != documents for column in (*judged, *seconds)):
        raise ValueError("Every setting, and the reference, needs the same documents, at least one.")
    if not all(np.isfinite(times).all() and (times > 0).all() for times in seconds):
        raise ValueError("Latencies must be finite and above 0 seconds.")
    if not all(np.isin(answers, (0, 1)).all() for answers in judged):
        raise ValueError("An answer is right or wrong.")
    # Accuracies are counted in documents, whole numbers, so that two equal ones are equal in every draw.
    right = np.stack([answers.astype(float) for answers in correct], axis=1)
    times = np.stack(seconds, axis=1)
    once = np.ones((1, documents))
    target = _targets(once, accuracy)
    if not 0 <= target[0] <= documents:
        raise ValueError(f"An accuracy is a share in 0..1, not {accuracy}.")
    share = float(target[0] / documents)
    names = [setting.name for setting in settings]
    value, between = _on_hull(right.sum(axis=0), times.mean(axis=0), float(target[0]))
    if between is None:
        reason = _outside(names, right.mean(axis=0), share)
        return IsoAccuracyLatency(share, None, None, None, None, documents, confidence, reason)
    line = (names[between[0]], names[between[1]])
    if documents < MINIMUM_DOCUMENTS:
        reason = f"interval unknown: {documents} of at least {MINIMUM_DOCUMENTS} documents"
        return IsoAccuracyLatency(share, value, None, None, line, documents, confidence, reason)
    counts = draw_counts(generator, documents, draws).astype(float)
    drawn = _hull_of_draws(counts @ right, counts @ times / documents, _targets(counts, accuracy))
    tail = (1 - confidence) / 2
    low, high = (float(q) for q in np.quantile(drawn, [tail, 1 - tail], method="inverted_cdf"))
    bounds = (None if low == 0 else low, None if high == np.inf else high)
    reason = "the interval leaves the measured accuracies" if None in bounds else ""
    return IsoAccuracyLatency(share, value, *bounds, line, documents, confidence, reason)


def _targets(counts: np.ndarray, accuracy: float | Sequence[bool]) -> np.ndarray:
    """[draws]: the documents that have to be answered correctly; counts [draws, documents]."""
    if isinstance(accuracy, int | float):
        return np.full(len(counts), round(accuracy * counts.shape[1], 9))
    found: np.ndarray = counts @ np.asarray(accuracy, dtype=float)
    return found


def _on_hull(right: np.ndarray, seconds: np.ndarray, target: float) -> tuple[float, tuple[int, int] | None]:
    """The smallest latency at `target` right answers, and which two settings give it; None outside their range."""
    best, between = float("inf"), None
    for i, (below, fast) in enumerate(zip(right, seconds, strict=True)):
        for j, (above, slow) in enumerate(zip(right, seconds, strict=True)):
            if below <= target <= above:
                share = (target - below) / (above - below) if above > below else 1.0
                line = float(fast + share * (slow - fast))
                for value, pair in ((float(slow), (j, j)), (line, (i, j))):
                    if value < best:
                        best, between = value, pair
    return best, between


def _hull_of_draws(right: np.ndarray, seconds: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """[draws]: latency at each draw's target; infinite where no setting reaches it, 0 where all exceed it."""
    found = np.full(len(targets), np.inf)
    for i in range(right.shape[1]):
        for j in range(right.shape[1]):
            below, above, fast, slow = right[:, i], right[:, j], seconds[:, i], seconds[:, j]
            width = above - below
            share = np.divide(targets - below, width, out=np.ones(len(targets)), where=width > 0)
            value = np.minimum(slow, fast + share * (slow - fast))
            found = np.where((below <= targets) & (targets <= above), np.minimum(found, value), found)
    return np.where(right.min(axis=1) > targets, 0.0, found)


def _outside(names: Sequence[str], accuracies: np.ndarray, target: float) -> str:
    best, worst = int(np.argmax(accuracies)), int(np.argmin(accuracies))
    if accuracies[best] < target:
        return (
            f"no measured setting reaches {target * 100:.1f} %: the most accurate one, {names[best]}, "
            f"has {accuracies[best] * 100:.1f} %"
        )
    return (
        f"every measured setting is more accurate than {target * 100:.1f} %: the least accurate one, {names[worst]}, "
        f"has {accuracies[worst] * 100:.1f} %; a faster one would have to be measured"
    )
