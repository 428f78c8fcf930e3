import numpy as np
import pytest
import statsmodels.api as sm

from dllm_audit.statistics.clustered import clustered_difference, clustered_non_inferiority
from dllm_audit.statistics.paired import PairedCounts, non_inferiority, tango_interval

BOTH, BETTER, WORSE, NEITHER = (True, True), (True, False), (False, True), (False, False)


def test_one_pair_a_document_is_the_interval_of_independent_pairs_but_for_students_t():
    pairs = [BOTH] * 200 + [BETTER] * 30 + [WORSE] * 45 + [NEITHER] * 125
    found, plain = clustered_difference([pair] for pair in pairs), tango_interval(PairedCounts(200, 30, 45, 125))
    assert found.difference == plain.difference
    assert found.design_effect == pytest.approx(400 / 399)
    assert (found.low, found.high) == pytest.approx((plain.low, plain.high), abs=3e-4)


def test_answers_that_only_repeat_themselves_are_worth_one_document_each():
    documents = [BOTH] * 200 + [BETTER] * 30 + [WORSE] * 45 + [NEITHER] * 125
    once = clustered_difference([pair] for pair in documents)
    tenfold = clustered_difference([pair] * 10 for pair in documents)
    assert (tenfold.documents, tenfold.pairs) == (400, 4000)
    assert tenfold.design_effect == pytest.approx(10 * once.design_effect)
    assert (tenfold.low, tenfold.high) == pytest.approx((once.low, once.high))


def test_the_design_effect_is_the_cluster_robust_variance_over_the_one_of_independent_pairs():
    rng = np.random.default_rng(1)
    documents = [[(rng.random() < p, rng.random() < q) for _ in range(4)] for p, q in rng.random((50, 2))]
    flat = np.array([int(ours) - int(theirs) for document in documents for ours, theirs in document], dtype=float)
    groups = np.repeat(np.arange(50), 4)
    fit = sm.OLS(flat, np.ones(200)).fit(cov_type="cluster", cov_kwds={"groups": groups, "use_correction": False})
    robust = float(fit.bse[0]) ** 2 * 50 / 49
    assert robust / (flat.var() / 200) > 1.2
    assert clustered_difference(documents).design_effect == pytest.approx(robust / (flat.var() / 200))


def test_without_a_discordant_pair_the_pairs_of_a_document_count_once():
    found = clustered_difference([[BOTH, BOTH, BOTH]] * 60 + [[NEITHER] * 3] * 40)
    plain = tango_interval(PairedCounts(60, 0, 0, 40))
    assert found.design_effect == 3
    assert (found.low, found.high) == pytest.approx((plain.low, plain.high), rel=0.05)


def test_pairs_that_avoid_each_other_by_accident_are_worth_no_more_than_independent_ones():
    assert clustered_difference([[BETTER, WORSE]] * 10 + [[BOTH, BOTH]] * 10).design_effect == 1.0


def test_non_inferiority_is_not_earned_by_asking_the_same_documents_again():
    documents = [BOTH] * 100 + [BETTER] * 4 + [WORSE] * 5 + [NEITHER] * 30
    repeated = [[pair] * 8 for pair in documents]
    flat = [pair for document in repeated for pair in document]
    assert non_inferiority(PairedCounts.of(flat), margin=0.03).non_inferior
    found = clustered_non_inferiority(repeated, margin=0.03)
    assert (found.non_inferior, found.inferior) == (False, False)
    # A loss of 1 in 139 with standard error 3 / 139: (0.03 - 0.0072) / 0.0216 = 1.06.
    assert found.p_value == pytest.approx(0.15, abs=0.02)


def test_a_loss_beyond_the_margin_is_called_inferior():
    found = clustered_non_inferiority([[WORSE, WORSE]] * 20 + [[BOTH, BOTH]] * 180, margin=0.02)
    assert (found.difference, found.non_inferior, found.inferior) == (-0.1, False, True)


def test_one_document_and_a_document_without_pairs_are_refused():
    for documents in ([[BOTH]], [[BOTH], []]):
        with pytest.raises(ValueError, match="at least two documents, and at least one pair in each"):
            clustered_difference(documents)


def test_a_margin_in_points_instead_of_a_share_is_refused():
    with pytest.raises(ValueError, match="0 < margin < 1"):
        clustered_non_inferiority([[BOTH], [BOTH]], margin=2)
