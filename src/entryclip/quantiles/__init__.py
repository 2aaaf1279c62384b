"""Order statistics of |x|: exact quantiles without sorting, on any device and over processes, and log-histograms."""

from .histogram import Histogram
from .quantile import quantile_abs

__all__ = ["Histogram", "quantile_abs"]
