"""How often sequential audits err, and what they save: all pairs of all audits at once, by the product's own evidence."""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import numpy as np

from dllm_audit.statistics.power import required_documents
from dllm_audit.statistics.sequential import (
    MINIMUM_PAIRS,
    log_speed_ratio,
    not_worse_evidence,
    speed_evidence,
    worse_evidence,
)

SEED = 20251129
AUDITS = 2000
ALPHA = 0.05

DESIGNS = ((0.02, 0.1, 1.0), (0.05, 0.2, 1.0), (0.05, 0.35, 1.0), (0.02, 0.3, 0.1))
"""(margin, discordance, share of the audits): the last one is a plan of 4,637 pairs."""


@dataclass(frozen=True)
class Audits:
    """How many simulated audits ended with which decision, and after how many pairs in the mean."""

    audits: int
    faster_and_not_worse: int
    slower: int
    worse: int
    mean_pairs: float
    planned_pairs: int

    @property
    def saved(self) -> float:
        """Share of the requests of the fixed plan that were not needed; an undecided audit took all of its pairs."""
        return 1 - self.mean_pairs / self.planned_pairs


def simulate_audits(
    audits: int,
    *,
    margin: float,
    discordance: float,
    difference: float,
    speed: float,
    longest: float = 3.0,
    alpha: float = ALPHA,
    seed: int = SEED,
) -> Audits:
    """Audits of decoders that truly differ by `difference` in accuracy and by the factor `speed`.

    An audit that is undecided after `longest` times the fixed plan stops so. Times are lognormal, and alike for one document.
    """
    planned = required_documents(margin, discordance, alpha).documents
    pairs = int(longest * planned)
    generator = np.random.default_rng(seed)
    decisions, stops = [], []
    for begin in range(0, audits, 100):
        size = (min(100, audits - begin), pairs)
        decision, stop = _stop(size, margin, discordance, difference, speed, alpha, generator)
        decisions.append(decision)
        stops.append(stop)
    found = np.concatenate(decisions)
    counts = [int((found == n).sum()) for n in (0, 1, 2)]
    return Audits(audits, *counts, float(np.concatenate(stops).mean()), planned)


def _stop(
    size: tuple[int, int],
    margin: float,
    discordance: float,
    difference: float,
    speed: float,
    alpha: float,
    generator: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """[audits] decision (0 faster and not worse, 1 slower, 2 worse, 3 none), [audits] pairs until then."""
    n = np.arange(1, size[1] + 1)
    dice = generator.random(size)
    better = np.cumsum(dice < (discordance + difference) / 2, axis=1)
    worse = np.cumsum(dice > 1 - (discordance - difference) / 2, axis=1)
    document = np.exp(0.4 * generator.standard_normal(size))
    ours, theirs = (document * np.exp(0.2 * generator.standard_normal(size)) / pace for pace in (speed, 1.0))
    ratio, deviation = _log_ratios(n, ours, theirs)
    known = n >= MINIMUM_PAIRS
    faster = _first(known & (speed_evidence(n, ratio, deviation) >= -log(alpha)))
    slower = _first(known & (speed_evidence(n, -ratio, deviation) >= -log(alpha / 2)))
    not_worse = _first(not_worse_evidence(n, better, worse, margin) >= -log(alpha))
    inferior = _first(worse_evidence(n, better, worse, margin) >= -log(alpha / 2))
    reached = np.stack([np.maximum(faster, not_worse), slower, inferior])
    when = reached.min(axis=0)
    return np.where(np.isinf(when), 3, reached.argmin(axis=0)), np.minimum(when, size[1])


SKEWS: dict[str, tuple[float, float, float]] = {
    "both even": (0.1, 0.1, 0.0),
    "both skewed": (1.0, 1.0, 0.0),
    "candidate skewed": (0.7, 0.05, 0.0),
    "baseline skewed": (0.05, 0.7, 0.0),
    "alike for a document": (0.2, 0.2, 0.6),
}
"""Standard deviation of the log of the seconds: of the candidate, of the baseline, and of the document for both."""


def false_speeds(audits: int, pairs: int, skew: tuple[float, float, float], *, seed: int = SEED) -> tuple[float, float]:
    """Shares of audits of equally fast decoders that ever say "faster" (at alpha) and "slower" (at alpha / 2)."""
    generator = np.random.default_rng(seed)
    n, size = np.arange(1, pairs + 1), (audits, pairs)
    document = np.exp(skew[2] * generator.standard_normal(size))
    ours, theirs = (document * np.exp(s * generator.standard_normal(size) - s**2 / 2) for s in skew[:2])
    ratio, deviation = _log_ratios(n, ours, theirs)
    known = n >= MINIMUM_PAIRS
    faster = known & (speed_evidence(n, ratio, deviation) >= -log(ALPHA))
    slower = known & (speed_evidence(n, -ratio, deviation) >= -log(ALPHA / 2))
    return float(faster.any(axis=1).mean()), float(slower.any(axis=1).mean())


def _log_ratios(n: np.ndarray, ours: np.ndarray, theirs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[audits, pairs] log speed ratio and its deviation after each pair, from the seconds of both sides."""
    values = np.stack([np.ones_like(ours), ours, np.ones_like(theirs), theirs], axis=-1)
    sums = np.cumsum(values, axis=1)
    products = np.cumsum(values[..., :, None] * values[..., None, :], axis=1)
    ratio, deviation = log_speed_ratio(n, sums, products)
    return ratio, deviation


def _first(reached: np.ndarray) -> np.ndarray:
    """[audits]: after how many pairs each was reached first; infinite where never."""
    return np.where(reached.any(axis=1), reached.argmax(axis=1) + 1.0, np.inf)


def error_limit(audits: int, alpha: float = ALPHA) -> float:
    """alpha plus two standard errors of a share of so many audits."""
    return float(alpha + 2 * np.sqrt(alpha * (1 - alpha) / audits))


def print_audits() -> None:
    print(
        f"\nSequential audits, {AUDITS} each (a tenth where the plan is long); at the margin or at equal speed a decision may be "
        f"wrong in {error_limit(AUDITS):.1%}\nplan: pairs of the fixed-sample plan for equal decoders, power 80 %; saved: of its requests"
    )
    print(
        f"{'margin':>6} {'discord.':>8}  {'truth':<28} {'faster+not worse':>16} {'slower':>7} {'worse':>7} "
        f"{'mean pairs':>10} {'plan':>5} {'saved':>6}"
    )
    for margin, discordance, share in DESIGNS:
        for truth, difference, speed, longest in (
            ("at the margin, equally fast", -margin, 1.0, 3.0),
            ("at the margin, 1.5x", -margin, 1.5, 3.0),
            ("equally good, equally fast", 0.0, 1.0, 3.0),
            ("equally good, 1.5x", 0.0, 1.5, 3.0),
            ("loses three margins, 1.5x", -3 * margin, 1.5, 1.5),
            ("gains three margins, 1.5x", 3 * margin, 1.5, 1.5),
        ):
            found = simulate_audits(
                int(AUDITS * share), margin=margin, discordance=discordance, difference=difference, speed=speed, longest=longest
            )  # fmt: skip
            shares = [n / found.audits for n in (found.faster_and_not_worse, found.slower, found.worse)]
            print(
                f"{margin:>6} {discordance:>8}  {truth:<28} {shares[0]:>16.1%} {shares[1]:>7.1%} {shares[2]:>7.1%} "
                f"{found.mean_pairs:>10.0f} {found.planned_pairs:>5} {found.saved:>6.0%}",
                flush=True,
            )
    print(
        f"\nEqually fast decoders that were called faster (5 %) or slower (2.5 %) within 1,000 pairs, {AUDITS} audits each"
    )
    for name, skew in SKEWS.items():
        faster, slower = false_speeds(AUDITS, 1000, skew)
        print(f"{name:<22} faster {faster:>6.1%}  slower {slower:>6.1%}", flush=True)
