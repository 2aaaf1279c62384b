"""The marginal distribution of noise entries, accumulated sample by sample: a histogram and the largest entries."""

from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from ...quantiles.histogram import Histogram

FAR = 2.5  # scales beyond which an entry belongs to the tail: 1.2 % of Gaussian noise
_KEPT = 16384  # largest entries that are kept for the tail index


@dataclass
class Marginal:
    """The histogram of |x| and its largest entries, over all samples that were added; x is in units of a scale."""

    histogram: Histogram = field(default_factory=lambda: Histogram.of(np.zeros(0)))
    tail_entries: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))

    def add(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Add one sample; return the entries beyond 2.5 scales, with their sign, and their places in flattened `x`."""
        self.histogram += Histogram.of(x)
        flat = x.reshape(-1)
        (beyond,) = (flat.abs() > FAR).nonzero(as_tuple=True)
        far = flat[beyond]
        self.tail_entries = np.concatenate([self.tail_entries, far.abs().cpu().numpy()])
        if len(self.tail_entries) > 4 * _KEPT:
            self.tail_entries = np.partition(self.tail_entries, len(self.tail_entries) - _KEPT)[-_KEPT:]
        return far, beyond

    def largest_entries(self) -> tuple[np.ndarray, int]:
        """Return the largest 1 % of all |x| (16384 at most), largest first, and the count of non-zero entries."""
        count = self.histogram.count - self.histogram.zeros
        kept = np.sort(self.tail_entries)[::-1].astype(np.float64)
        return kept[: min(_KEPT, count // 100 + 1)], count
