"""The convergence theory as a calculator: thresholds, bias, variance and rates, each bound beside the exact value."""

from . import entry
from .theorems import Guarantee, guarantee

__all__ = ["Guarantee", "guarantee"]

# Former names, to be removed once no module uses them.
METHODS, exact = entry.OPERATOR_BOUNDS, entry.exact
threshold_hard, threshold_smooth = entry.threshold_hard, entry.threshold_smooth
