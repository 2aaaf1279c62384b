"""Noise of stochastic gradients: models to draw from."""

from .laws import Cauchy, Contamination, Gaussian, Noise, StudentT
from .models import Aligned, HeavyLowRank, LowRankSum, Spike, Subspace

__all__ = [
    "Aligned",
    "Cauchy",
    "Contamination",
    "Gaussian",
    "HeavyLowRank",
    "LowRankSum",
    "Noise",
    "Spike",
    "StudentT",
    "Subspace",
]
