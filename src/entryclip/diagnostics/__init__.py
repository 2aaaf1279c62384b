"""Measurements of gradient noise: is it localized, how heavy is its tail, what does it do to the spectrum.

localization                does one entry of the noise drive a singular value, compared with Gaussian noise
scales                      the scales of rows and columns, and the entries without them
tail_index                  the tail of |x|: a power law or not, and its index
expansion, detachment, spiked_sigma, max_entry_correlation, recovery    the effect of noise on singular values
probe                       all of it for the matrices of a model, with advice
Monitor                     the noise of a model while it trains
"""

from .localization import localization
from .monitor import Monitor
from .probe import MatrixNoise, Report, probe
from .scales import Scales, scales
from .spectrum import detachment, expansion, max_entry_correlation, recovery, spiked_sigma
from .tails import tail_index

__all__ = [
    "MatrixNoise",
    "Monitor",
    "Report",
    "Scales",
    "detachment",
    "expansion",
    "localization",
    "max_entry_correlation",
    "probe",
    "recovery",
    "scales",
    "spiked_sigma",
    "tail_index",
]
