"""Noise of stochastic gradients: models to draw from, and the Bayes estimator under them."""

from .bayes import Branches, branches, posterior_mean, retention, wiener_coefficient
from .collapse import Collapse, TailConstants, posterior_collapse, tail_constants
from .laws import Cauchy, Contamination, Gaussian, Law, Noise, StudentT
from .models import Aligned, HeavyLowRank, LowRankSum, Spike, Subspace

__all__ = [
    "Aligned",
    "Branches",
    "Cauchy",
    "Collapse",
    "Contamination",
    "Gaussian",
    "HeavyLowRank",
    "Law",
    "LowRankSum",
    "Noise",
    "Spike",
    "StudentT",
    "Subspace",
    "TailConstants",
    "branches",
    "posterior_collapse",
    "posterior_mean",
    "retention",
    "tail_constants",
    "wiener_coefficient",
]
