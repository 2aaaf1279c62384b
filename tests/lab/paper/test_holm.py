"""Holm's correction by its definition, and claims that are judged together by paired losses."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entryclip.lab.paper.holm import holm
from entryclip.lab.paper.intervals import paired_p, student_interval
from entryclip.lab.paper.paired_claims import PairedClaim, common_differences, judge

P_VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=6)


def rejected(p_values, level):
    """The claims that Holm's procedure finds true, step by step as he states it."""
    left, found = sorted(range(len(p_values)), key=p_values.__getitem__), set()
    while left and p_values[left[0]] < level / len(left):
        found.add(left.pop(0))
    return found


@given(P_VALUES, st.floats(0.001, 0.999))
def test_adjusted_below_a_level_is_what_the_stepwise_procedure_rejects(p_values, level):
    adjusted = holm(p_values)
    distance = min(abs(p * k - level) for p in p_values for k in range(1, len(p_values) + 1))
    if distance > 1e-9:  # on the border rounding decides
        assert {i for i, p in enumerate(adjusted) if p < level} == rejected(p_values, level)


@given(P_VALUES)
def test_never_below_the_raw_value_and_in_the_same_order(p_values):
    adjusted = holm(p_values)
    assert all(raw <= new <= 1 for raw, new in zip(p_values, adjusted, strict=True))
    for (p, a), (q, b) in itertools.combinations(zip(p_values, adjusted, strict=True), 2):
        assert (p < q and a <= b) or (p > q and a >= b) or (p == q and a == b)


@given(P_VALUES, st.integers(0, 5), st.floats(0, 1))
def test_a_smaller_p_value_makes_none_larger(p_values, place, share):
    lower = list(p_values)
    lower[place % len(lower)] *= share
    assert all(new <= old for new, old in zip(holm(lower), holm(p_values), strict=True))


def test_by_hand():
    """Four claims: 4 x .005, 3 x .01, 2 x .03, then .04, which may not fall below the one before."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.2]) == [0.2]
    assert holm([]) == []
    assert holm([math.nan, 0.01]) == pytest.approx([1.0, 0.02])
    with pytest.raises(ValueError, match=r"p-values must be in \[0, 1\], got 1\.5"):
        holm([0.1, 1.5])


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=8))
def test_p_is_below_5_percent_where_the_interval_leaves_out_0(values):
    differences = np.array(values)
    low, high = student_interval(differences)[1:]
    if min(abs(low), abs(high)) > 1e-9:
        assert (paired_p(differences) < 0.05) == (low > 0 or high < 0)


def test_p_without_spread_or_pairs():
    assert paired_p(np.array([-0.5, -0.5])) == 0
    assert paired_p(np.array([0.0, 0.0])) == 1
    assert math.isnan(paired_p(np.array([-0.5])))
    assert math.isnan(paired_p(np.array([-0.5, math.nan, -0.4])))
    assert math.isnan(paired_p(np.array([])))


SURE, WORSE = np.array([-0.30, -0.31, -0.29]), np.array([0.30, 0.31, 0.29])


def test_a_claim_holds_below_and_not_above_and_never_by_one_seed():
    found = judge([PairedClaim("below", SURE), PairedClaim("above", WORSE), PairedClaim("one", SURE[:1])])
    assert [claim.holds for claim in found] == [True, False, False]
    assert "(1 seed; not tested, Holm over 3 claims 1)" in found[2].measured
    assert [claim.holds for claim in judge([PairedClaim("none", SURE[:0])])] == [False]
    assert "no seed in common" in judge([PairedClaim("none", SURE[:0])])[0].measured


def test_what_holds_alone_may_not_hold_among_many():
    fair = np.array([-0.30, -0.10, -0.22, -0.25])  # p about .02
    assert 0.01 < paired_p(fair) < 0.025
    (alone,) = judge([PairedClaim("a", fair)])
    among = judge([PairedClaim("a", fair), *[PairedClaim("b", np.array([0.1, -0.1]))] * 4])
    assert alone.holds
    assert not among[0].holds
    assert "Holm over 5 claims" in among[0].measured
    assert "the only claim tested" in alone.measured


def test_false_claims_rarely_hold():
    """Ten seeds, five claims without any effect: one of them holds in at most 5 % of the families.

    Two-sided tests of which only one side counts: 2.5 % are expected, 25 of 1000; more than 45 has probability 1e-4.
    """
    rng = np.random.default_rng(0)
    families = [judge([PairedClaim("x", rng.normal(0, 1, 10)) for _ in range(5)]) for _ in range(1000)]
    assert sum(any(claim.holds for claim in family) for family in families) <= 45


def test_differences_are_over_common_seeds():
    assert common_differences({1: 5.0, 2: 3.0}, {2: 2.0, 7: 0.0}).tolist() == [1.0]
    assert common_differences({1: 5.0}, {2: 2.0}).size == 0
