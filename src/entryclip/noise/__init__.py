"""Noise of stochastic gradients: models to draw from, the Bayes estimator under them, and fits to data."""

from .bayes import posterior_mean, retention
from .collapse import posterior_collapse
from .contamination import Contamination
from .fit import fit
from .laws import Cauchy, Gaussian, Laplace, StudentT
from .models import Aligned, HeavyLowRank, LowRankSum, Spike, Subspace

__all__ = [
    "Aligned",
    "Cauchy",
    "Contamination",
    "Gaussian",
    "HeavyLowRank",
    "Laplace",
    "LowRankSum",
    "Spike",
    "StudentT",
    "Subspace",
    "fit",
    "posterior_collapse",
    "posterior_mean",
    "retention",
]
