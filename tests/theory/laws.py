"""Random symmetric laws for the tests of the theory: every one that the package can draw."""

from hypothesis import strategies as st

from entryclip.noise import Cauchy, Contamination, Gaussian, Laplace, StudentT

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


def weaker(law, factor):
    """The law of factor times an entry."""
    if isinstance(law, Contamination):
        return Contamination(law.alpha, factor * law.sigma, weaker(law.heavy, factor))
    if isinstance(law, StudentT):
        return StudentT(law.nu, factor * law.scale)
    (scale,) = vars(law).values()
    return type(law)(factor * scale)
