import numpy as np
import pytest

from dllm_audit.statistics.power import required_documents
from dllm_audit.statistics.sequential import (
    MINIMUM_PAIRS,
    AuditPair,
    SequentialAudit,
    difference_evidence,
    log_speed_ratio,
    not_worse_evidence,
    projected_pairs,
    speed_evidence,
    worse_evidence,
)
from tests.benchmarks.audits import SKEWS, error_limit, false_speeds, simulate_audits

EQUAL, BETTER, WORSE = (True, True), (True, False), (False, True)


def pair(answers=EQUAL, ours=1.0, theirs=2.0, **tokens):
    return AuditPair(ours, theirs, *answers, **tokens)


def jitter(n):
    """Two sides whose seconds vary a little, without chance: 1 and 2 seconds, up or down by a tenth."""
    return {"ours": 1.1 if n % 2 else 0.9, "theirs": 2.2 if n % 3 else 1.8}


def test_equal_answers_in_half_the_time_end_as_faster_and_not_worse():
    audit = SequentialAudit(margin=0.05).update_all(pair(**jitter(n)) for n in range(100))
    assert audit.decision == "faster and not worse"
    # Six gamblers stake 0.15, 0.24, 0.38, 0.60, 0.95 and 1.00 of their wealth, and each pair pays 0.05 of the stake:
    # after 83 pairs they have 1.9 + 2.7 + 4.7 + 11.3 + 46.3 + 57.4 = 124 together, more than 6 x 20; after 82, 118.
    assert audit.not_worse_after == 83
    assert audit.faster_after == MINIMUM_PAIRS
    assert audit.decided_after == 83


def test_both_have_to_be_decided():
    not_faster = SequentialAudit(0.05).update_all(pair(ours=1.0, theirs=1.0) for _ in range(200))
    assert (not_faster.not_worse_after, not_faster.faster_after) == (83, None)
    assert not_faster.decision == "undecided"
    answers = [EQUAL, EQUAL, WORSE, EQUAL, BETTER, EQUAL, WORSE, EQUAL, EQUAL, EQUAL] * 4
    not_decided = SequentialAudit(0.05).update_all(pair(a, **jitter(n)) for n, a in enumerate(answers))
    assert not_decided.faster_after == MINIMUM_PAIRS
    assert not_decided.decision == "undecided"


def test_a_loss_far_beyond_the_margin_ends_as_worse_and_a_slow_candidate_as_slower():
    worse = SequentialAudit(0.05).update_all(pair(WORSE if n % 4 == 0 else EQUAL, **jitter(n)) for n in range(100))
    assert worse.decision == "worse"
    slower = SequentialAudit(0.05).update_all(pair(ours=x["theirs"], theirs=x["ours"]) for x in map(jitter, range(60)))
    assert (slower.decision, slower.decided_after) == ("slower", MINIMUM_PAIRS)


def test_what_was_decided_first_stays_decided():
    audit = SequentialAudit(0.05).update_all(pair(**jitter(n)) for n in range(90))
    later = audit.update_all(pair(WORSE, ours=9.0) for _ in range(200))
    assert later.worse_after is not None
    assert (later.decision, later.decided_after, later.pairs) == ("faster and not worse", 83, 290)


def test_equal_times_never_decide_the_speed_by_rounding():
    audit = SequentialAudit(0.05).update_all(pair(ours=x, theirs=x) for x in np.linspace(0.1, 0.7, 300).tolist())
    assert (audit.faster_after, audit.slower_after) == (None, None)
    assert audit.speed.ratio == pytest.approx(1.0)


def test_faster_than_what_an_a_a_control_makes_up_needs_more_than_faster_than_one():
    times = [pair(ours=1.0 + 0.1 * (n % 2), theirs=1.1 + 0.1 * (n % 2)) for n in range(100)]
    assert SequentialAudit(0.05).update_all(times).faster_after is not None
    assert SequentialAudit(0.05, faster_than=1.2).update_all(times).faster_after is None


def test_speed_is_a_ratio_of_sums_of_tokens_and_seconds_where_tokens_are_given():
    times = [
        pair(ours=1.0, theirs=4.0, candidate_tokens=10, baseline_tokens=20),
        pair(ours=3.0, theirs=4.0, candidate_tokens=50, baseline_tokens=20),
    ]
    # 60 tokens in 4 s against 40 tokens in 8 s.
    assert SequentialAudit(0.05).update_all(times).speed.ratio == pytest.approx(15 / 5)


def test_the_deviation_of_the_log_ratio_is_that_of_its_linear_part():
    rng = np.random.default_rng(1)
    values = rng.gamma(5, 1, (300, 4))
    audit = SequentialAudit(0.05).update_all(AuditPair(b, d, True, True, a, c) for a, b, c, d in values)
    tokens, seconds, base_tokens, base_seconds = (values / values.mean(axis=0)).T
    by_hand = np.std(tokens - seconds - base_tokens + base_seconds, ddof=1)
    _, deviation = log_speed_ratio(300, np.array(audit.sums), np.array(audit.products).reshape(4, 4))
    assert deviation == pytest.approx(by_hand)


def test_the_evidence_is_the_mean_wealth_of_six_gamblers():
    # Margin 0.02: 0.06 ... 0.6 of the wealth; one gain, one loss, one equal pair.
    bets = np.geomspace(0.06, 0.6, 6)
    wealth = (1 + bets * 1.02) * (1 - bets * 0.98) * (1 + bets * 0.02)
    assert not_worse_evidence(3, 1, 1, 0.02) == pytest.approx(np.log(wealth.mean()))


def test_the_evidence_is_a_fair_game_at_the_boundary_whatever_the_discordance():
    # Expected wealth after three pairs, by adding up all outcomes: exactly 1 at a loss of exactly the margin.
    for gain, loss in ((0.0, 0.1), (0.2, 0.3), (0.45, 0.55)):
        weights = {1: gain, -1: loss, 0: 1 - gain - loss}
        for evidence, expected in ((not_worse_evidence, 1.0), (worse_evidence, 1.0)):
            total = sum(
                weights[a] * weights[b] * weights[c]
                * np.exp(evidence(3, [a, b, c].count(1), [a, b, c].count(-1), 0.1))
                for a in weights for b in weights for c in weights
            )  # fmt: skip
            assert total == pytest.approx(expected)


def test_the_speed_evidence_is_the_half_normal_mixture_of_likelihood_ratios():
    # Integral over effects r of 2 N(r; 0, 0.1^2) exp(r S - n r^2 / 2), with S = n x log ratio / deviation.
    n, log_ratio, deviation = 50, 0.08, 0.4
    effects = np.linspace(0, 1.5, 200_001)
    density = 2 * np.exp(-(effects**2) / 0.02) / (0.1 * np.sqrt(2 * np.pi))
    integrand = density * np.exp(effects * n * log_ratio / deviation - n * effects**2 / 2)
    expected = np.log(np.trapezoid(integrand, effects))
    assert speed_evidence(n, log_ratio, deviation) == pytest.approx(expected, abs=1e-6)


def test_the_lower_ends_of_the_intervals_are_where_the_decisions_are_made():
    answers = [BETTER if n % 31 == 0 else WORSE if n % 29 == 0 else EQUAL for n in range(400)]
    audit = SequentialAudit(0.03).update_all(pair(a, **jitter(n)) for n, a in enumerate(answers))
    quality, speed = audit.quality, audit.speed
    assert quality.confidence == speed.confidence == pytest.approx(0.9)
    n, b, c = audit.pairs, audit.only_candidate, audit.only_baseline
    for boundary in (quality.low, -quality.high):
        better, worse = (b, c) if boundary == quality.low else (c, b)
        assert difference_evidence(n, better, worse, boundary, 0.03) == pytest.approx(np.log(20), abs=1e-3)
    value, deviation = log_speed_ratio(n, np.array(audit.sums), np.array(audit.products).reshape(4, 4))
    assert speed_evidence(n, value - np.log(speed.low), deviation) == pytest.approx(np.log(20), abs=1e-6)
    assert speed.low < speed.ratio < speed.high


def test_the_projection_is_where_an_audit_that_goes_on_alike_is_decided():
    audit = SequentialAudit(0.05).update_all(pair(**jitter(n)) for n in range(30))
    projected = audit.more_pairs()
    assert projected is not None
    assert projected >= 53  # it takes 83 in all, and no discordant pair so far is not taken for none ever
    decided = audit.update_all(pair(**jitter(n)) for n in range(53))
    assert decided.more_pairs() == 0


def test_no_projection_is_made_from_few_pairs_or_where_nothing_will_decide():
    assert SequentialAudit(0.05).update_all([pair()] * 19).more_pairs() is None
    same = SequentialAudit(0.05).update_all(pair(ours=1.0, theirs=1.0) for _ in range(100))
    assert same.more_pairs() is None


def test_saved_requests_are_those_of_the_plan_beyond_the_decision_two_a_pair():
    audit = SequentialAudit(0.05).update_all(pair(**jitter(n)) for n in range(100))
    assert audit.saved_requests() == 2 * (required_documents(0.05).documents - 83)


def test_an_audit_by_pairs_decides_when_the_simulated_ones_do():
    rng = np.random.default_rng(5)
    audit, found = SequentialAudit(0.1), []
    better = worse = 0
    for n in range(1, 400):
        u = rng.random()
        answers = BETTER if u < 0.1 else WORSE if u < 0.25 else EQUAL
        better, worse = better + (answers == BETTER), worse + (answers == WORSE)
        audit = audit.update(pair(answers, *rng.gamma(4, 0.25, 2)))
        if not_worse_evidence(n, better, worse, 0.1) >= np.log(20):
            found.append(n)
    assert audit.not_worse_after == min(found, default=None)


def test_2000_audits_at_the_margin_and_at_equal_speed_decide_anything_at_all_in_at_most_alpha():
    found = simulate_audits(2000, margin=0.1, discordance=0.3, difference=-0.1, speed=1.0, longest=2)
    assert found.faster_and_not_worse + found.slower + found.worse <= 2000 * error_limit(2000)


@pytest.mark.parametrize(("difference", "speed"), [(-0.1, 1.5), (0.0, 1.0)], ids=["at the margin", "equally fast"])
def test_2000_audits_of_which_half_the_claim_is_true_say_it_falsely_in_at_most_alpha(difference, speed):
    found = simulate_audits(2000, margin=0.1, discordance=0.3, difference=difference, speed=speed, longest=2)
    assert found.faster_and_not_worse <= 2000 * error_limit(2000)
    assert (found.slower if speed == 1 else found.worse) <= 2000 * error_limit(2000, 0.025)


def test_1000_audits_with_skewed_times_call_an_equally_fast_candidate_faster_in_at_most_alpha():
    faster, slower = false_speeds(1000, 300, SKEWS["candidate skewed"])
    assert faster <= error_limit(1000)
    assert slower <= error_limit(1000, 0.025)


@pytest.mark.parametrize("difference", [-0.15, 0.15], ids=["loses", "gains"])
def test_a_true_difference_of_three_margins_saves_half_of_the_requests(difference):
    found = simulate_audits(500, margin=0.05, discordance=0.2, difference=difference, speed=1.5, longest=1.5)
    decided = found.worse if difference < 0 else found.faster_and_not_worse
    assert decided / found.audits >= 0.99
    assert found.saved >= 0.5


def test_a_margin_in_points_and_times_that_are_none_are_refused():
    with pytest.raises(ValueError, match=r"0 < margin < 1 \(0\.02 for two points\)"):
        SequentialAudit(2)
    with pytest.raises(ValueError, match=r"a factor of 1 or more, not 0\.9"):
        SequentialAudit(0.02, faster_than=0.9)
    with pytest.raises(ValueError, match="A pair needs seconds above 0"):
        AuditPair(0.0, 1.0, True, True)
    with pytest.raises(ValueError, match="There is no pair yet"):
        SequentialAudit(0.02).quality  # noqa: B018


def test_the_fixed_plan_is_that_of_one_look_and_what_was_saved_is_measured_by_it():
    audit = SequentialAudit(0.1).update_all([AuditPair(1.0, 2.0, True, True)] * 30)
    # (1.645 + 0.842)^2 x 0.1 / 0.1^2, with the discordance of 10 % that is assumed where none was seen.
    assert audit.fixed_plan() == 62
    assert audit.saved_requests() == 2 * (62 - (audit.decided_after or audit.pairs))


def test_a_projection_takes_fewer_pairs_for_decoders_that_differ_than_for_equal_ones():
    equal, loses, gains = (projected_pairs(0.1, 100, difference) for difference in (0.0, -0.3, 0.3))
    assert loses.pairs < equal.pairs
    assert gains.pairs < equal.pairs
    assert 0 < equal.decided_within < 1
    assert equal == projected_pairs(0.1, 100)
