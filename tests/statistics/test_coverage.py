"""Small versions, with fixed seeds, of what `python -m tests.benchmarks coverage` prints."""

import numpy as np
import pytest
from scipy.stats import multinomial

from dllm_audit.statistics.paired import PairedCounts, tango_interval
from tests.benchmarks.audits import error_limit
from tests.benchmarks.coverage import (
    clustered_covers,
    correct_per_second_covers,
    covered,
    crossover_covers,
    iso_accuracy_covers,
    speedup_covers,
    tango_coverage,
    throughput_covers,
    wilson_coverage,
)
from tests.benchmarks.identical import compare_identical_pairs

SIMULATIONS = 300


def assert_covers_95_percent(simulate):
    """Within two standard errors of 95 %."""
    assert covered(simulate, SIMULATIONS) == pytest.approx(0.95, abs=2 * np.sqrt(0.05 * 0.95 / SIMULATIONS))


@pytest.mark.parametrize("trials", [200, 1319])
def test_wilson_covers_93_to_97_percent_at_every_rate_from_one_to_nine_tenths(trials):
    found = wilson_coverage(trials, np.linspace(0.1, 0.9, 81))
    assert found.min() >= 0.93
    assert found.max() <= 0.97


def test_the_exact_coverage_of_wilson_is_what_adding_up_by_hand_gives():
    # n = 2 at a rate of one half: 0 of 2 gives 0..0.66, 1 of 2 gives 0.09..0.91, 2 of 2 gives 0.34..1: all hold it.
    # At 0.05 only the first holds it: 0.95 squared.
    assert wilson_coverage(2, np.array([0.5, 0.05])) == pytest.approx([1.0, 0.9025])


@pytest.mark.parametrize(("only_candidate", "only_baseline"), [(0.025, 0.025), (0.06, 0.04), (0.125, 0.175)])
def test_tango_covers_93_to_97_percent_of_200_documents(only_candidate, only_baseline):
    assert 0.93 <= tango_coverage(200, only_candidate, only_baseline) <= 0.97


def test_the_exact_coverage_of_tango_is_that_of_its_interval():
    def holds(b, c):
        interval = tango_interval(PairedCounts(0, b, c, 8 - b - c))
        return interval.low <= 0.1 <= interval.high

    tables = [(b, c) for b in range(9) for c in range(9 - b)]
    total = sum(multinomial.pmf([b, c, 8 - b - c], 8, [0.3, 0.2, 0.5]) for b, c in tables if holds(b, c))
    assert tango_coverage(8, 0.3, 0.2) == pytest.approx(total)


@pytest.mark.parametrize("simulate", [
    speedup_covers(1, 50, "batch"),
    speedup_covers(5, 4, "repeat"),
    throughput_covers(5, 8, "repeat", between=0.1),
    throughput_covers(5, 20, "crossed", between=0.1, same=True),
    clustered_covers(200, 4, 0.3),
    crossover_covers(5, 7.0),
    correct_per_second_covers(100, 0.5),
], ids=["speed-up", "speed-up of repeats", "throughput", "crossed throughput", "clustered", "crossover", "correct per second"])  # fmt: skip
def test_intervals_cover_the_truth_95_times_in_100(simulate):
    assert_covers_95_percent(simulate)


def test_latency_at_the_accuracy_of_a_reference_is_covered_about_95_times_in_100():
    assert covered(iso_accuracy_covers(200, 0.7), 200) == pytest.approx(0.95, abs=0.03)


def test_repeats_of_the_same_documents_say_nothing_of_other_documents_unless_they_are_crossed():
    assert covered(throughput_covers(5, 20, "repeat", between=0.02, same=True), 200) < 0.6
    assert covered(throughput_covers(5, 20, "crossed", between=0.02, same=True), 200) > 0.9


def test_identical_pairs_of_runs_are_told_apart_in_at_most_alpha():
    found = compare_identical_pairs(40, 30, drift=0.03, noise=0.1)
    assert found.faster_or_slower <= 40 * error_limit(40)
    assert found.worse <= 40 * error_limit(40)
    assert found.mcnemar <= 40 * error_limit(40)
