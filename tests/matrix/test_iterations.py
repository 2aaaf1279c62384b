import numpy as np
import pytest

from entryclip.matrix import iterations


def compose(steps, s):
    for a, b, c in steps:
        s = a * s + b * s**3 + c * s**5
    return s


@pytest.mark.parametrize("lower", [1.0, 0.99, 0.5, 0.1, 1e-2, 1e-4, 1e-6])
def test_minimax_takes_the_whole_interval_to_one(lower):
    s = np.concatenate([np.geomspace(lower, 1, 20001), np.linspace(lower, 1, 20001)])
    assert np.abs(compose(iterations.minimax_quintics(lower, 1e-7), s) - 1).max() < 1e-7


def test_minimax_beats_the_classical_iteration():
    steps = iterations.minimax_quintics(1e-4, 1e-7)
    classical = [iterations._SETTLE] * len(steps)
    assert compose(classical, np.array(1e-4)) < 0.1


@pytest.mark.parametrize(("low", "high"), [(0.1, 1.0), (1e-3, 1.0), (0.3, 1.7)])
def test_each_quintic_is_the_best(low, high):
    """Equal errors of alternating sign at four points: Chebyshev's theorem says that nothing is better."""
    quintic, error = iterations._best_quintic(low, high)
    s = np.linspace(low, high, 200_001)
    deviation = 1 - compose([quintic], s)
    assert np.abs(deviation).max() == pytest.approx(error, rel=1e-6)
    ends = [0, *np.flatnonzero(np.diff(np.sign(np.diff(deviation)))) + 1, len(s) - 1]
    np.testing.assert_allclose(deviation[ends], error * np.array([1, -1, 1, -1]), rtol=1e-6)


def test_rounds_hold_one_and_lift_the_rest():
    s = np.geomspace(1e-6, 1, 100_001)
    after = compose((*iterations._HEAD, *iterations._ROUND), s)
    assert after.max() <= 1 + 1e-6
    lifted = compose(iterations._ROUND * (iterations._rounds(1e-6) - 1), after)
    assert np.abs(lifted - 1).max() < 1e-6


@pytest.mark.parametrize(("lower", "tol"), [(0.0, 1e-7), (1.5, 1e-7), (0.1, 0.0)])
def test_bad_input(lower, tol):
    with pytest.raises(ValueError, match="lower must be in"):
        iterations.minimax_quintics(lower, tol)
