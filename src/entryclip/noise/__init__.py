"""Noise of stochastic gradients: models to draw from, the Bayes estimator under them, and fits to data."""

from .bayes import Branches, branches, log_marginal, posterior_mean, retention, wiener_coefficient
from .collapse import Collapse, TailConstants, posterior_collapse, tail_constants
from .fit import Fit, Interval, fit
from .histogram import Histogram
from .laws import Cauchy, Contamination, Gaussian, Law, Noise, StudentT
from .models import Aligned, HeavyLowRank, LowRankSum, Spike, Subspace

__all__ = [
    "Aligned",
    "Branches",
    "Cauchy",
    "Collapse",
    "Contamination",
    "Fit",
    "Gaussian",
    "HeavyLowRank",
    "Histogram",
    "Interval",
    "Law",
    "LowRankSum",
    "Noise",
    "Spike",
    "StudentT",
    "Subspace",
    "TailConstants",
    "branches",
    "fit",
    "log_marginal",
    "posterior_collapse",
    "posterior_mean",
    "retention",
    "tail_constants",
    "wiener_coefficient",
]
