import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from dllm_audit.statistics.paired import PairedCounts, mcnemar_exact, non_inferiority, score, tango_interval

AIRWAY = PairedCounts(both=1, only_candidate=1, only_baseline=7, neither=12)
"""Bentur et al. 2009, worked through in Fagerland et al. 2014, Statistics in Medicine 33:2850-2875."""


def test_counts_are_tallied_from_pairs_of_candidate_and_baseline():
    pairs = [(True, True), (True, False), (True, False), (False, True), (False, False), (False, False)]
    counts = PairedCounts.of(pairs)
    assert counts == PairedCounts(both=1, only_candidate=2, only_baseline=1, neither=2)
    assert counts.difference == pytest.approx(1 / 6)
    assert counts.discordance == pytest.approx(3 / 6)


def test_exact_mcnemar_of_one_against_seven_counts_the_two_tails_of_a_fair_coin():
    # P(X <= 1) for 8 tosses is (1 + 8) / 256; both tails: 18 / 256.
    test = mcnemar_exact(AIRWAY)
    assert test.discordant == 8
    assert test.p_value == pytest.approx(18 / 256)


def test_exact_mcnemar_without_discordant_documents_finds_no_difference():
    assert mcnemar_exact(PairedCounts(5, 0, 0, 5)).p_value == 1.0


def test_tango_interval_of_the_airway_data_is_the_published_one():
    interval = tango_interval(AIRWAY)
    assert interval.difference == pytest.approx(-6 / 21)
    assert (interval.low, interval.high) == pytest.approx((-0.517, -0.026), abs=5e-4)


def test_tango_interval_turns_around_when_the_two_sides_change_places():
    forward, backward = tango_interval(PairedCounts(50, 9, 4, 37)), tango_interval(PairedCounts(50, 4, 9, 37))
    assert (backward.low, backward.high) == pytest.approx((-forward.high, -forward.low))


def test_tango_interval_without_discordant_documents_is_the_wilson_bound_on_both_sides():
    # With b = c = 0 the score equation reduces to Wilson's for 0 of n: z^2 / (n + z^2).
    interval = tango_interval(PairedCounts(6, 0, 0, 4))
    assert (interval.low, interval.high) == pytest.approx((-0.27753, 0.27753), abs=1e-5)


@pytest.mark.parametrize("difference", [-0.6, -0.2, 0.0, 0.3])
def test_the_score_uses_the_likelihood_maximum_under_the_supposed_difference(difference):
    n, b, c = AIRWAY.documents, AIRWAY.only_candidate, AIRWAY.only_baseline

    def minus_log_likelihood(q):  # q: only the baseline is right; q + difference: only the candidate
        return -(b * np.log(q + difference) + c * np.log(q) + (n - b - c) * np.log(1 - 2 * q - difference))

    low, high = max(0.0, -difference) + 1e-9, (1 - difference) / 2 - 1e-9
    q = minimize_scalar(minus_log_likelihood, bounds=(low, high), method="bounded", options={"xatol": 1e-12}).x
    by_hand = (b - c - n * difference) / np.sqrt(n * (2 * q + difference - difference**2))
    assert score(n, b, c, difference) == pytest.approx(by_hand, abs=1e-6)


def test_non_inferiority_is_decided_by_the_one_sided_bound_and_its_own_p_value():
    # Tango 1998: of 44 lenses 43 were disinfected by both methods, one by the standard only; margin 0.1.
    verdict = non_inferiority(PairedCounts(43, 0, 1, 0), margin=0.1)
    assert verdict.non_inferior
    assert not verdict.inferior
    assert verdict.low == pytest.approx(-0.0957, abs=5e-5)
    assert verdict.p_value == pytest.approx(0.0438, abs=5e-5)


def test_not_shown_to_be_non_inferior_is_not_the_same_as_inferior():
    undecided = non_inferiority(PairedCounts(60, 10, 12, 18), margin=0.02)
    assert (undecided.non_inferior, undecided.inferior) == (False, False)
    worse = non_inferiority(PairedCounts(500, 10, 100, 390), margin=0.02)
    assert (worse.non_inferior, worse.inferior) == (False, True)


def test_a_margin_in_points_instead_of_a_share_is_refused():
    with pytest.raises(ValueError, match=r"0 < margin < 1"):
        non_inferiority(AIRWAY, margin=2)


def test_counts_that_are_all_zero_are_refused():
    with pytest.raises(ValueError, match="not all zero"):
        PairedCounts(0, 0, 0, 0)


@pytest.mark.parametrize(("documents", "only_candidate", "only_baseline"), [(200, 0.05, 0.05), (400, 0.3, 0.2)])
def test_tango_interval_covers_the_true_difference_about_95_times_in_100(documents, only_candidate, only_baseline):
    generator = np.random.default_rng(20251129)
    rates = [0.5, only_candidate, only_baseline, 0.5 - only_candidate - only_baseline]
    tables = generator.multinomial(documents, rates, size=1500)
    intervals = [tango_interval(PairedCounts(*map(int, table))) for table in tables]
    covered = np.mean([i.low <= only_candidate - only_baseline <= i.high for i in intervals])
    assert 0.93 <= covered <= 0.97


def test_non_inferiority_errs_at_most_alpha_when_the_loss_is_exactly_the_margin():
    generator = np.random.default_rng(20251129)
    tables = generator.multinomial(400, [0.6, 0.04, 0.06, 0.3], size=2000)  # two points lost
    errors = np.mean([non_inferiority(PairedCounts(*map(int, t)), margin=0.02).non_inferior for t in tables])
    assert errors <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / 2000)
