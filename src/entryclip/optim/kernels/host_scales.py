"""What a clip by the scales of rows and columns works out on the host, for all matrices of one shape at a time."""

import numpy as np
from numpy.typing import NDArray

from ...auto_threshold import rows_in_turn
from ...efficiency import BINS
from ...log_scales import LogScales, LogSums, scales_of_sums
from .scaled_matrices import ScaledMatrices


class MatricesOfOneShape:
    """Room for what the kernel finds in `count` matrices of one shape (m, n), and for the scales that it is given."""

    def __init__(self, index: NDArray[np.int64], shape: tuple[int, int]):
        count, (m, n) = len(index), shape
        self.index, self.shape = index, shape  # their places in the plan
        self.stride, self.looked_at = rows_in_turn(m, n)
        self.row_sums, self.row_counts = np.zeros((count, m, 1), np.int64), np.zeros((count, m, 1), np.int64)
        self.column_sums, self.column_counts = np.zeros((count, 1, n), np.int64), np.zeros((count, 1, n), np.int64)
        self.excess = np.zeros((count, 1, 1), np.int64)
        self.row_scales, self.column_scales = np.ones((count, m, 1), np.float32), np.ones((count, 1, n), np.float32)
        self.sketch = np.zeros((count, BINS), np.float32)

    def set_scales(self, variance: NDArray[np.float32], ceiling: NDArray[np.float32]) -> LogScales:
        """Make the scales of the sums that were found under the ceiling."""
        found = (self.row_sums, self.row_counts, self.column_sums, self.column_counts, self.excess)
        scales = scales_of_sums(LogSums(*(each.astype(np.float64) for each in found)), variance, ceiling)
        self.row_scales[:], self.column_scales[:] = scales.rows, scales.columns
        return scales


def by_shape(scaled: ScaledMatrices) -> list[MatricesOfOneShape]:
    """Return the clipped matrices of a plan by their shapes."""
    places: dict[tuple[int, int], list[int]] = {}
    for i, shape in enumerate(scaled.shapes):
        places.setdefault(shape, []).append(i)
    return [MatricesOfOneShape(np.array(index), shape) for shape, index in places.items()]
