"""Instruments: is gradient noise localized, how heavy is its tail, what does it do to the spectrum."""

from .localization import Localization, localization
from .spectrum import (
    Correlation,
    Expansion,
    Recovery,
    detachment,
    expansion,
    max_entry_correlation,
    recovery,
    spiked_sigma,
)
from .tails import HillPlot, TailIndex, tail_index

__all__ = [
    "Correlation",
    "Expansion",
    "HillPlot",
    "Localization",
    "Recovery",
    "TailIndex",
    "detachment",
    "expansion",
    "localization",
    "max_entry_correlation",
    "recovery",
    "spiked_sigma",
    "tail_index",
]
