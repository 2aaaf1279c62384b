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

# Former names, to be removed once no module uses them.
from ..quantiles.histogram import Histogram as Histogram
from .bayes import log_marginal as log_marginal
from .fit import Fit as Fit
from .fit import Interval as Interval
from .laws import Law as Law
from .laws import Noise as Noise
