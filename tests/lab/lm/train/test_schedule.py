import itertools

import pytest

from entryclip.lab.lm.train.schedule import evaluation_steps, lr_factor


def test_linear_ends_at_nothing_and_warm_up_starts_from_nothing():
    factors = [lr_factor("linear", step, 100, warmup=10) for step in range(100)]
    assert factors[:10] == [pytest.approx((i + 1) / 10) for i in range(10)]
    assert factors[10] == 1
    assert factors[-1] == pytest.approx(1 / 90)
    assert all(a > b for a, b in itertools.pairwise(factors[10:]))


def test_wsd_is_the_speed_runs():
    """The rate is constant for 60 % of the run, then falls linearly to a tenth."""
    factors = [lr_factor("wsd", step, 1000, floor=0.1) for step in range(1000)]
    assert set(factors[:601]) == {1.0}
    assert factors[800] == pytest.approx(0.55)
    assert factors[-1] == pytest.approx(0.1, abs=0.003)


def test_constant():
    assert {lr_factor("constant", step, 10) for step in range(10)} == {1.0}


@pytest.mark.parametrize(("steps", "every"), [(1, 1), (3, 10), (490, 70), (1770, 125)])
def test_evaluations_begin_at_the_start_end_at_the_end_and_are_dense_in_the_last_fifth(steps, every):
    found = evaluation_steps(steps, every)
    assert (found[0], found[-1]) == (0, steps)
    assert max(b - a for a, b in itertools.pairwise(found)) <= every
    late = [each for each in found if each >= steps - steps // 5]
    assert all(b - a <= max(every // 4, 1) for a, b in itertools.pairwise(late))
