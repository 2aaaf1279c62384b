"""Exact quantiles of |x| without sorting, on the host, on a device and over processes."""

from .quantile import quantile_abs

__all__ = ["quantile_abs"]
