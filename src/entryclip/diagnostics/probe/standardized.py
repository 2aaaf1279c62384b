"""The noise of one matrix with the scales of its rows and columns divided out, sample by sample.

Every sample is divided by scales of its own, since a sequence that drives one neuron drives the whole row of it. Their
search begins at the mean scales of the samples before, which is faster than at medians. That mean, two vectors, is all
that is kept of them; the null of R-hat needs it. Scales that change from sample to sample leave no trace in a mean, so
that of each sample the variances of its own log-scales are kept too, which are numbers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from ...log_scales import NARROW
from ...matrix.singular import leading_triplet
from ...scales import RowColumnScales, row_column_scales
from ..pooled_scales import PooledScales
from ..spike_screen import dominant_size
from ..variance_components import VarianceComponents, variance_components
from .marginal import Marginal

DOMINANT = 0.5  # the share of sigma_1 above which one entry is a spike
_ROUNDS = 2  # from the mean of the scales on
_LOOK, _ROWS = 1 << 18, 32  # entries, about, and rows at least of a sample of which the variances are taken
_LARGEST = 1e30  # a spike over a row of next to nothing would overflow in fp32


class DetectedSpike(NamedTuple):
    """The largest entry of one sample's noise, with its share of sigma_1: a spike if that is more than half."""

    sample: int
    row: int
    column: int
    share: float  # u_i E_ij v_j / sigma_1, with u, v the noise's own leading directions
    size: float  # |E_ij| in scales

    def __str__(self) -> str:
        return f"sample {self.sample}, row {self.row}, column {self.column}: {self.share:.0%} of sigma_1"


@dataclass
class StandardizedStatistics:
    """Accumulates the statistics of one matrix's noise over its scales of rows and columns."""

    marginal: Marginal = field(default_factory=Marginal)
    pooled: PooledScales = field(default_factory=PooledScales)
    spikes: list[DetectedSpike] = field(default_factory=list)
    components: list[VarianceComponents] = field(default_factory=list)  # of log|E| in some rows of each sample
    _dense: bool = True  # whether no row and no column was zero in any sample

    def add_(self, sample: int, noise: Tensor) -> None:
        """Add one sample's noise, (m, n), in units of its own scale; `noise` is overwritten."""
        self.components.append(variance_components(rows_in_turn(noise, sample)))
        found = self._scales(noise)
        self.pooled.add(found)
        self._dense = self._dense and bool((found.rows.amin() > 0) & (found.columns.amin() > 0))
        rows, columns = (torch.where(side > 0, side, 1) for side in (found.rows, found.columns * found.overall))
        noise.div_(rows[:, None]).div_(columns).clamp_(-_LARGEST, _LARGEST)
        self.marginal.add(noise)
        spike = dominant_entry(sample, noise)
        self.spikes += [spike] if spike is not None and is_spike(spike, noise.shape) else []

    def _scales(self, noise: Tensor) -> RowColumnScales:
        """Return the sample's scales; from medians on where a mean over samples would be of no help."""
        if not self.pooled.draws or not self._dense:
            return row_column_scales(noise)
        start = RowColumnScales(noise.new_ones(()), self.pooled.rows, self.pooled.columns)
        return row_column_scales(noise, _ROUNDS, start=start)


def rows_in_turn(x: Tensor, turn: int) -> Tensor:
    """Return some of the rows of a large `x`, (m, n), evenly spaced, others in each turn; of a small one all.

    >>> rows_in_turn(torch.ones(4096, 1024), 3).shape, rows_in_turn(torch.ones(30, 40), 3).shape
    (torch.Size([256, 1024]), torch.Size([30, 40]))
    """
    every = max(min(x.numel() // _LOOK, len(x) // _ROWS), 1)
    return x[turn % every :: every]


def dominant_entry(sample: int, noise: Tensor) -> DetectedSpike | None:
    """Return the largest entry where it carries more than half of sigma_1, for `noise`, (m, n), in units of its scale.

    sigma_1 is at least ||E||_F / sqrt(min(m, n)), so that an entry below half of that is no spike, and in most samples
    sigma_1 need not be computed.
    """
    top = float(noise.abs().amax())
    norm = float(torch.linalg.vector_norm(noise))
    norm = (
        norm if norm < math.inf else float(torch.linalg.vector_norm(noise, dtype=torch.float64))
    )  # several times slower
    if top == 0 or DOMINANT * norm > top * min(noise.shape) ** 0.5:
        return None
    found, _ = largest_entry(sample, noise)
    return found if found.share > DOMINANT else None


def is_spike(found: DetectedSpike, shape: Sequence[int]) -> bool:
    """Return whether the largest entry of a matrix of this shape carries half of sigma_1, and that by no chance.

    In a narrow matrix one of few Gaussian entries often does.
    """
    return found.share > DOMINANT and (min(shape) >= NARROW or found.size > dominant_size(*shape))


def largest_entry(sample: int, noise: Tensor) -> tuple[DetectedSpike, float]:
    """Return the largest entry, whatever its share of sigma_1, and sigma_1; `noise`, (m, n), is not all zero."""
    row, column = divmod(int(noise.abs().argmax()), noise.shape[1])
    top = float(noise[row, column].abs())
    u, sigma, v = leading_triplet(noise / top)
    return DetectedSpike(sample, row, column, float((u[row] * v[column]).abs()) / sigma, top), sigma * top
