"""The convergence theory as numbers: thresholds, bias, variance and rates, each bound beside the exact value."""

from .entry import (
    METHODS,
    Scalars,
    exact,
    rho_hard,
    rho_smooth,
    threshold_hard,
    threshold_smooth,
    variance_hard,
    variance_smooth,
)
from .theorems import Guarantee, guarantee

__all__ = [
    "METHODS",
    "Guarantee",
    "Scalars",
    "exact",
    "guarantee",
    "rho_hard",
    "rho_smooth",
    "threshold_hard",
    "threshold_smooth",
    "variance_hard",
    "variance_smooth",
]
