"""Random symmetric laws for the tests of the theory, every one that the package can draw, and entries under them."""

import numpy as np
from hypothesis import strategies as st

from entryclip.noise import Cauchy, Contamination, Gaussian, Laplace, StudentT
from entryclip.noise.moments import moments
from entryclip.theory.entry import OPERATOR_BOUNDS

SCALE = st.floats(0.05, 5)
SINGLE = st.one_of(
    st.builds(Gaussian, SCALE),
    st.builds(Cauchy, SCALE),
    st.builds(StudentT, st.floats(0.3, 30), SCALE),
    st.builds(Laplace, SCALE),
)
LAWS = st.one_of(
    SINGLE,
    st.builds(Contamination, st.floats(0, 1), SCALE, SINGLE),
    st.builds(Contamination, st.floats(0.01, 1), st.just(0.0), SINGLE),  # a point mass beside the heavy part
)
POWER = st.floats(0, 5).map(lambda x: 10**x)
# parts so far apart that the exact variance rises as the heavy one alone falls
APART = st.builds(Contamination, st.floats(0.01, 0.99), SCALE, st.builds(Cauchy, POWER))

FACTOR = st.one_of(st.floats(0.01, 1), POWER.map(lambda x: 1 / x))  # by which the scale of a law may be lower
BULK = st.one_of(
    st.sampled_from([0.0, 1.0]), st.floats(1e-3, 1)
)  # the same for the Gaussian part of contaminated noise
WEAKER = st.one_of(st.just((1.0, 1.0)), st.tuples(FACTOR, BULK))


def weaker(law, factor, bulk=None):
    """The law of factor times an entry; of contaminated noise, the Gaussian part may have a factor of its own."""
    if isinstance(law, Contamination):
        return Contamination(law.alpha, (factor if bulk is None else bulk) * law.sigma, weaker(law.heavy, factor))
    if isinstance(law, StudentT):
        return StudentT(law.nu, factor * law.scale)
    (scale,) = vars(law).values()
    return type(law)(factor * scale)


def processed(operator, thresholds, G, noises):
    """Mean and variance of each clipped entry of a matrix, by quadrature; `noises` are the laws of its entries."""
    each = [
        moments(OPERATOR_BOUNDS[operator].operator, t, np.array([g]), noise)
        for t, g, noise in zip(thresholds.ravel(), G.ravel(), noises, strict=True)
    ]
    return tuple(np.array(values).reshape(G.shape) for values in zip(*each, strict=True))
