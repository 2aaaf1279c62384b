"""Instruments: is gradient noise localized, how heavy is its tail, what does it do to the spectrum."""

from .localization import Localization, localization
from .measured import MatrixNoise
from .monitor import Monitor, Reading
from .probe import Report, probe
from .recommend import Recommendation
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
    "MatrixNoise",
    "Monitor",
    "Reading",
    "Recommendation",
    "Recovery",
    "Report",
    "TailIndex",
    "detachment",
    "expansion",
    "localization",
    "max_entry_correlation",
    "probe",
    "recovery",
    "spiked_sigma",
    "tail_index",
]
