"""How often intervals hold the truth and tests err: counted exactly where that is possible, else simulated from a seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import log

import numpy as np
from scipy.stats import binom, multinomial, norm

from dllm_audit.statistics.clustered import clustered_difference
from dllm_audit.statistics.crossover import crossover_concurrency
from dllm_audit.statistics.goodput import ServedRequest, ServedRun, correct_per_second
from dllm_audit.statistics.iso_accuracy import MeasuredSetting, iso_accuracy_latency
from dllm_audit.statistics.paired import score
from dllm_audit.statistics.proportions import wilson_interval
from dllm_audit.statistics.throughput import Batch, Level, Repeat, speedup_interval, throughput_interval
from tests.benchmarks.audits import print_audits
from tests.benchmarks.identical import print_identical_pairs

SEED = 20251129
SIMULATIONS = 1000
"""Of each bootstrap interval; the coverage is then known within about 1.4 points (two standard errors)."""

DRAWS = 1000


def main() -> None:
    """95 % intervals should cover 93 to 97 % for n >= 200; tests should err in at most 5 %, plus two standard errors"""
    print_single_rates()
    print_paired_rates()
    print_bootstraps()
    print_audits()
    print_identical_pairs()


# One rate, and two paired ones: exact, by adding up the probabilities of all samples that the interval covers.


def wilson_coverage(trials: int, rates: np.ndarray) -> np.ndarray:
    """Exact coverage of the 95 % Wilson interval at each rate."""
    intervals = [wilson_interval(k, trials) for k in range(trials + 1)]
    low, high = (np.array([getattr(i, end) for i in intervals])[:, None] for end in ("low", "high"))
    found: np.ndarray = np.where(
        (low <= rates) & (rates <= high), binom.pmf(np.arange(trials + 1)[:, None], trials, rates), 0
    ).sum(0)
    return found


def tango_coverage(documents: int, only_candidate: float, only_baseline: float) -> float:
    """Exact coverage of the 95 % Tango interval, given how often only one side is right.

    The interval holds a difference exactly where its score lies within +-1.96.
    """
    z, difference = float(norm.isf(0.025)), only_candidate - only_baseline
    rates = (only_candidate, only_baseline)
    ranges = [_likely(documents, rate) for rate in rates]
    tables = np.array([(b, c, documents - b - c) for b in ranges[0] for c in ranges[1] if b + c <= documents])
    weights = multinomial.pmf(tables, documents, [*rates, 1 - sum(rates)])
    covered = [abs(score(documents, b, c, difference)) <= z for b, c, _ in tables.tolist()]
    return float(weights[covered].sum() / weights.sum())


def _likely(trials: int, rate: float) -> range:
    """Counts within seven standard deviations of the expected one."""
    spread = 7 * np.sqrt(trials * rate * (1 - rate)) + 7
    return range(max(0, int(trials * rate - spread)), min(trials, int(trials * rate + spread)) + 1)


def print_single_rates() -> None:
    rates = np.linspace(0.1, 0.9, 401)
    print("\nOne rate (Wilson), exact, over 401 rates from .1 to .9")
    print(f"{'n':>6} {'mean':>7} {'lowest':>7} {'highest':>8} {'rates within 93-97 %':>21}")
    for trials in (20, 50, 100, 200, 500, 1319):
        found = wilson_coverage(trials, rates)
        inside = np.mean((found >= 0.93) & (found <= 0.97))
        print(f"{trials:>6} {found.mean():>7.1%} {found.min():>7.1%} {found.max():>8.1%} {inside:>21.1%}")


def print_paired_rates() -> None:
    print("\nPaired difference (Tango), exact; discordance .05 to .3, difference 0, 2 and 5 points")
    print(f"{'n':>6} {'mean':>7} {'lowest':>7} {'highest':>8}")
    for documents in (20, 50, 100, 200, 500, 1319):
        found = [
            tango_coverage(documents, (discordance + difference) / 2, (discordance - difference) / 2)
            for discordance in (0.05, 0.1, 0.2, 0.3)
            for difference in (0.0, 0.02, 0.05)
            if difference < discordance
        ]
        print(f"{documents:>6} {np.mean(found):>7.1%} {min(found):>7.1%} {max(found):>8.1%}")


# Bootstraps and clusters: simulated.


def covered(simulate: Callable[[np.random.Generator], bool], simulations: int, seed: int = SEED) -> float:
    """Share of the simulations in which the interval held the truth."""
    generator = np.random.default_rng(seed)
    return float(np.mean([simulate(generator) for _ in range(simulations)]))


def lognormal(generator: np.random.Generator, spread: float, size: int | tuple[int, ...]) -> np.ndarray:
    """Factors with mean 1 and standard deviation of the logarithm `spread`."""
    found: np.ndarray = np.exp(spread * generator.standard_normal(size) - spread**2 / 2)
    return found


def repeats_of_documents(
    generator: np.random.Generator, repeats: int, documents: int, between: float, within: float, same: bool
) -> list[Repeat]:
    """Repeats of one rate (100 tokens/s): seconds vary between repeats, and between documents inside them.

    same: every repeat has the same documents, whose seconds differ, and a fifth of `within` as noise of its own.
    """
    machine = lognormal(generator, between, repeats)
    if same:
        seconds = lognormal(generator, within, documents) * lognormal(generator, within / 5, (repeats, documents))
    else:
        seconds = lognormal(generator, within, (repeats, documents))
    return [[Batch(100.0, float(m * s)) for s in row] for m, row in zip(machine, seconds, strict=True)]


def throughput_covers(
    repeats: int, documents: int, level: Level, *, between: float, same: bool = False
) -> Callable[[np.random.Generator], bool]:
    """Whether an interval holds the throughput of infinitely many repeats and documents, 100 tokens/s."""

    def simulate(generator: np.random.Generator) -> bool:
        data = repeats_of_documents(generator, repeats, documents, between, 0.5, same)
        found = throughput_interval(data, level=level, draws=DRAWS, generator=generator)
        assert found.low is not None
        assert found.high is not None
        return found.low <= 100 <= found.high

    return simulate


def speedup_covers(repeats: int, documents: int, level: Level) -> Callable[[np.random.Generator], bool]:
    """Whether the interval of a 2x speed-up holds 2; machine and document meet both sides alike, most of it."""

    def simulate(generator: np.random.Generator) -> bool:
        machine = lognormal(generator, 0.1, (repeats, 1)) if level == "repeat" else np.ones((repeats, 1))
        common = machine * lognormal(generator, 0.5, (repeats, documents))
        sides = [
            [[Batch(100.0, float(s) / speed) for s in row] for row in common * lognormal(generator, 0.2, common.shape)]
            for speed in (2, 1)
        ]
        found = speedup_interval(*sides, level=level, draws=DRAWS, generator=generator)
        assert found.low is not None
        assert found.high is not None
        return found.low <= 2 <= found.high

    return simulate


def clustered_covers(documents: int, each: int, rate: float) -> Callable[[np.random.Generator], bool]:
    """Whether the clustered interval holds the true difference.

    Each document has its own chance on the baseline, beta distributed about `rate`; for half of the documents the
    candidate's is 30 % nearer to one half, in all of the answers.
    """

    def simulate(generator: np.random.Generator) -> bool:
        chance = generator.beta(4 * rate, 4 * (1 - rate), documents)
        moved = chance + (generator.random(documents) < 0.5) * 0.3 * (0.5 - chance)
        base = generator.random((documents, each)) < chance[:, None]
        ours = generator.random((documents, each)) < moved[:, None]
        found = clustered_difference(
            [list(zip(a, b, strict=True)) for a, b in zip(ours.tolist(), base.tolist(), strict=True)]
        )
        return found.low <= 0.15 * (0.5 - rate) <= found.high

    return simulate


def crossover_covers(repeats: int, crossing: float) -> Callable[[np.random.Generator], bool]:
    """Whether the interval holds the concurrency at which a baseline overtakes that gains with every doubling."""
    levels = (1, 2, 4, 8, 16, 32)
    logs = [0.25 * (log(crossing) - log(level)) / log(2) for level in levels]

    def simulate(generator: np.random.Generator) -> bool:
        machine = lognormal(generator, 0.1, repeats)

        def side(factor: float) -> list[Repeat]:
            return [
                [Batch(100 * factor * float(n * m), 1.0)]
                for n, m in zip(lognormal(generator, 0.08, repeats), machine, strict=True)
            ]

        candidate, baseline = [side(float(np.exp(x))) for x in logs], [side(1.0) for _ in logs]
        found = crossover_concurrency(levels, candidate, baseline, draws=DRAWS, generator=generator)
        low, high = found.low or levels[0], found.high or levels[-1]
        decided = found.reason.startswith("decided")
        return not decided and low <= crossing <= high

    return simulate


def correct_per_second_covers(requests: int, rate: float) -> Callable[[np.random.Generator], bool]:
    """Whether the interval holds `rate` correct answers a second: requests of one second in the mean."""

    def simulate(generator: np.random.Generator) -> bool:
        seconds, right = lognormal(generator, 0.5, requests), generator.random(requests) < rate
        run = ServedRun(
            tuple(ServedRequest(float(s), correct=bool(r)) for s, r in zip(seconds, right, strict=True)),
            float(seconds.sum()),
        )
        found = correct_per_second([run], level="batch", draws=DRAWS, generator=generator)
        assert found.low is not None
        assert found.high is not None
        return found.low <= rate <= found.high

    return simulate


def iso_accuracy_covers(documents: int, reference: float) -> Callable[[np.random.Generator], bool]:
    """Whether the interval holds the latency at the accuracy of a reference between two of four settings."""
    rates, seconds = (0.5, 0.65, 0.75, 0.8), (1.0, 1.5, 2.2, 3.2)
    truth = float(np.interp(reference, rates, seconds))

    def simulate(generator: np.random.Generator) -> bool:
        hard = generator.random(documents)
        settings = [
            MeasuredSetting(
                str(rate), (hard + 0.1 * generator.random(documents) < rate + 0.05).tolist(),
                (mean * lognormal(generator, 0.4, documents)).tolist(),
            )
            for rate, mean in zip(rates, seconds, strict=True)
        ]  # fmt: skip
        target = (hard + 0.1 * generator.random(documents) < reference + 0.05).tolist()
        found = iso_accuracy_latency(settings, target, draws=DRAWS, generator=generator)
        if found.seconds is None:
            return False
        return (found.low or 0) <= truth <= (found.high or np.inf)

    return simulate


def print_bootstraps() -> None:
    print(f"\nBootstrap and cluster intervals, {SIMULATIONS} simulations each")
    rows: Iterable[tuple[str, Callable[[np.random.Generator], bool]]] = [
        *((f"speed-up, {n} requests, batch", speedup_covers(1, n, "batch")) for n in (5, 20, 50, 200, 500)),
        *((f"speed-up, {n} repeats, repeat", speedup_covers(n, 20, "repeat")) for n in (5, 10, 20)),
        *((f"throughput, {n} requests, batch", throughput_covers(1, n, "batch", between=0)) for n in (5, 20, 50, 200, 500)),
        *(
            (f"throughput, {n} repeats, {kind} documents, {level}", throughput_covers(n, 40, level, between=between, same=same))
            for n in (5, 10, 20)
            for kind, same, between in (("new", False, 0.02), ("same", True, 0.02), ("new, drifting", False, 0.2))
            for level in levels_of(same)
        ),
        *((f"correct per second, {n} requests, rate {r}", correct_per_second_covers(n, r)) for n in (50, 200) for r in (0.1, 0.5, 0.9)),
        *((f"clustered, {n} documents x 4, rate {r}", clustered_covers(n, 4, r)) for n in (20, 50, 200, 500) for r in (0.1, 0.5, 0.9)),
        *((f"crossover, {n} repeats", crossover_covers(n, 7.0)) for n in (5, 10, 20)),
        *((f"iso-accuracy latency, {n} documents", iso_accuracy_covers(n, 0.7)) for n in (50, 200, 500)),
    ]  # fmt: skip
    for name, simulate in rows:
        share = covered(simulate, SIMULATIONS)
        print(f"{name:<60} {share:>6.1%} {'' if 0.93 <= share <= 0.97 else '  outside 93-97 %'}")


def levels_of(same: bool) -> tuple[Level, ...]:
    return ("repeat", "nested", "crossed") if same else ("repeat", "nested")
