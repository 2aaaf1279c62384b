"""The convergence theory as a calculator: thresholds, bias, variance and rates, each bound beside the exact value."""

from .theorems import Guarantee, guarantee

__all__ = ["Guarantee", "guarantee"]
