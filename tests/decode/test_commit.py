"""Which proposals become tokens: hand-computed cases, and what holds for every policy."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dllm_audit import EntropyBound, Factor, FixedK, Reveal, Threshold, ThresholdWithinQuota

NONE = -math.inf


def select(policy, rows, quota=None, dtype=torch.float32):
    confidence = torch.tensor(rows, dtype=dtype)
    return policy.select(confidence, torch.tensor(quota or [1] * len(rows))).int().tolist()


def test_fixed_k_commits_the_quota_most_confident_of_each_row():
    assert select(FixedK(), [[0.1, 0.9, 0.5, 0.7], [0.4, 0.3, 0.2, 0.1]], [2, 3]) == [[0, 1, 0, 1], [1, 1, 1, 0]]


def test_fixed_k_takes_the_lowest_index_among_equals():
    assert select(FixedK(), [[0.2, 0.5, 0.5, 0.5]], [2]) == [[0, 1, 1, 0]]


def test_fixed_k_never_takes_more_than_there_are_candidates():
    assert select(FixedK(), [[0.5, NONE, 0.5, NONE]], [4]) == [[1, 0, 1, 0]]


def test_fixed_k_with_a_quota_of_zero_commits_nothing():
    assert select(FixedK(), [[0.5, 0.6]], [0]) == [[0, 0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_threshold_commits_at_equality(dtype):
    assert select(Threshold(0.9), [[0.95, 0.9, 0.89]], dtype=dtype) == [[1, 1, 0]]


def test_threshold_commits_the_most_confident_where_none_reaches_it():
    assert select(Threshold(0.9), [[0.1, 0.3, 0.2]]) == [[0, 1, 0]]


def test_threshold_commits_at_least_one_token_per_unfinished_row_and_none_of_a_finished_one():
    rows = [[0.1, 0.3, 0.2], [0.95, 0.1, 0.95], [NONE, NONE, NONE]]
    assert select(Threshold(0.9), rows) == [[0, 1, 0], [1, 0, 1], [0, 0, 0]]


def test_threshold_takes_the_lowest_index_among_equal_maxima_below_the_bar():
    assert select(Threshold(0.9), [[0.2, 0.3, 0.3]]) == [[0, 1, 0]]


def test_threshold_does_not_look_at_the_quota():
    assert select(Threshold(0.5), [[0.9, 0.9, 0.9]], [1]) == [[1, 1, 1]]


def test_factor_commits_while_n_plus_one_times_the_doubt_stays_below_it():
    # (n+1)(1-c): 2*.1=.2, 3*.2=.6, 4*.2=.8, 5*.25=1.25
    assert select(Factor(1.0), [[0.9, 0.75, 0.8, 0.8]]) == [[1, 0, 1, 1]]
    assert select(Factor(0.7), [[0.9, 0.75, 0.8, 0.8]]) == [[1, 0, 1, 0]]


def test_factor_commits_one_even_where_the_first_fails():
    assert select(Factor(1.0), [[0.1, 0.2, 0.3]]) == [[0, 0, 1]]


def test_factor_is_strict_in_the_paper_and_inclusive_in_the_program():
    # rank 3: 4 * (1 - 0.75) = 1 exactly; a fourth and a fifth candidate fail clearly
    rows = [[1.0, 1.0, 0.75, 0.1, 0.1]]
    assert select(Factor(1.0), rows) == [[1, 1, 0, 0, 0]]
    assert select(Factor(1.0, compat=True), rows) == [[1, 1, 1, 0, 0]]


def test_an_entropy_bound_commits_the_surest_while_all_but_the_highest_entropy_add_up_to_at_most_it():
    # entropies .1 .2 .4 .5 in order: sums without the highest are 0, .1, .3, .7
    rows = [[-0.5, -0.1, NONE, -0.4, -0.2]]
    assert select(EntropyBound(0.0), rows) == [[0, 1, 0, 0, 0]]
    assert select(EntropyBound(0.1), rows) == [[0, 1, 0, 0, 1]]
    assert select(EntropyBound(0.5), rows) == [[0, 1, 0, 1, 1]]
    assert select(EntropyBound(0.8), rows) == [[1, 1, 0, 1, 1]]


def test_an_entropy_bound_of_zero_commits_everything_that_is_certain_and_one_more():
    assert select(EntropyBound(0.0), [[0.0, -0.3, 0.0, -0.2]]) == [[1, 0, 1, 1]]
    assert select(EntropyBound(5.0), [[NONE, NONE]]) == [[0, 0]]


def test_the_program_commits_the_last_candidate_too_when_it_is_the_only_one_that_failed():
    rows = [[0.99, 0.99, 0.99, 0.1]]
    assert select(Factor(1.0), rows) == [[1, 1, 1, 0]]
    assert select(Factor(1.0, compat=True), rows) == [[1, 1, 1, 1]]


def test_the_program_always_commits_both_of_the_last_two_candidates():
    rows = [[NONE, 0.2, NONE, 0.01]]
    assert select(Factor(1.0), rows) == [[0, 1, 0, 0]]
    assert select(Factor(1.0, compat=True), rows) == [[0, 1, 0, 1]]


def test_the_programs_quirk_needs_exactly_one_failure():
    rows = [[0.99, 0.99, 0.1, 0.1]]
    assert select(Factor(1.0, compat=True), rows) == select(Factor(1.0), rows) == [[1, 1, 0, 0]]


@pytest.mark.parametrize("compat", [False, True])
def test_factor_treats_every_row_by_its_own_candidates(compat):
    rows = [[0.99, 0.1, 0.1], [NONE, NONE, NONE], [NONE, 0.3, NONE]]
    assert select(Factor(1.0, compat=compat), rows) == [[1, 0, 0], [0, 0, 0], [0, 1, 0]]


def test_a_threshold_within_the_quota_commits_the_surest_and_of_the_rest_of_the_quota_what_clears_the_bar():
    """Quota 3 of four candidates, bar 0.7: 0.95 and 0.8 are in, 0.6 is third but fails, 0.75 would pass but is fourth."""
    policy = ThresholdWithinQuota(0.7)
    assert select(policy, [[0.95, 0.8, 0.6, 0.5]], [3]) == [[1, 1, 0, 0]]
    assert select(policy, [[0.75, 0.95, 0.9, 0.8]], [3]) == [[0, 1, 1, 1]]
    assert select(policy, [[0.1, 0.3, NONE]], [2]) == [[0, 1, 0]]
    assert select(policy, [[0.7, 0.9]], [2]) == [[1, 1]]


def test_reveal_commits_each_candidate_whose_number_lies_below_the_chance():
    policy = Reveal()
    assert select(policy, [[0.1, 0.5, NONE, 0.49], [0.2, 0.9, 0.3, 0.4]], [0.5, 0.25]) == [[1, 0, 0, 1], [1, 0, 0, 0]]
    assert select(policy, [[0.0, 0.999, NONE]], [1.0]) == [[1, 1, 0]]
    assert select(policy, [[0.5, 0.6]], [0.1]) == [[0, 0]]


POLICIES = [
    FixedK(),
    Threshold(0.7),
    Threshold(0.0),
    Threshold(1.0),
    Factor(1.0),
    Factor(0.3),
    Factor(1.0, compat=True),
    ThresholdWithinQuota(0.7),
]
CELL = st.one_of(st.just(NONE), st.floats(0, 1, width=32))
TABLE = st.integers(1, 9).flatmap(
    lambda width: st.lists(st.lists(CELL, min_size=width, max_size=width), min_size=1, max_size=4)
)


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@given(rows=TABLE, quota=st.integers(1, 5))
def test_every_policy_commits_candidates_only_at_least_one_per_row_and_never_skips_a_surer_one(policy, rows, quota):
    chosen = select(policy, rows, [quota] * len(rows))
    for row, picks in zip(rows, chosen, strict=True):
        sure = [c for c, pick in zip(row, picks, strict=True) if pick]
        left = [c for c, pick in zip(row, picks, strict=True) if not pick and c > NONE]
        assert NONE not in sure
        assert bool(sure) == any(c > NONE for c in row)
        assert not left or not sure or max(left) <= min(sure)
        if isinstance(policy, FixedK):
            assert len(sure) == min(quota, sum(c > NONE for c in row))


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@given(rows=TABLE)
def test_every_policy_decides_a_row_alone_as_it_does_among_others(policy, rows):
    together = select(policy, rows)
    assert together == [select(policy, [row])[0] for row in rows]
