"""Noise of stochastic gradients: models to draw from, the Bayes estimator under them, and fits to data."""

from .bayes import posterior_mean, retention
from .collapse import posterior_collapse
from .fit import fit
from .laws import Cauchy, Contamination, Gaussian, StudentT
from .models import Aligned, HeavyLowRank, LowRankSum, Spike, Subspace

__all__ = [
    "Aligned",
    "Cauchy",
    "Contamination",
    "Gaussian",
    "HeavyLowRank",
    "LowRankSum",
    "Spike",
    "StudentT",
    "Subspace",
    "fit",
    "posterior_collapse",
    "posterior_mean",
    "retention",
]
