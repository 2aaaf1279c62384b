"""The clipped matrices of a fused step whose thresholds follow the scales of rows and columns: the clip is `Auto`'s.

A backend walks over the entries; what is as long as rows and columns is worked out here, by the functions of the plain
path, for all matrices of one shape at a time.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ...auto_threshold import Auto, expected, rows_in_turn
from ...clip import Clip
from ...efficiency import BINS
from ...layout import Layout
from ...log_scales import LogScales, ceiling_bits, scales_of_sums
from ...thresholds import State
from .plan import OPERATORS, KernelPlan, Operator


class MatricesOfOneShape:
    """Room for what the backend finds in `count` matrices of one shape (m, n), and for the scales that it is given."""

    def __init__(self, index: NDArray[np.int64], shape: tuple[int, int]):
        count, (m, n) = len(index), shape
        self.index, self.shape = index, shape  # their places in the plan
        self.stride, self.looked_at = rows_in_turn(m, n)
        self.row_sums, self.row_counts = np.zeros((count, m, 1), np.int64), np.zeros((count, m, 1), np.int64)
        self.column_sums, self.column_counts = np.zeros((count, 1, n), np.int64), np.zeros((count, 1, n), np.int64)
        self.row_scales, self.column_scales = np.ones((count, m, 1), np.float32), np.ones((count, 1, n), np.float32)
        self.sketch = np.zeros((count, BINS), np.float32)

    def set_scales(self, variance: NDArray[np.float32]) -> LogScales:
        """Make the scales of the sums that were found."""
        by_row, by_column = (self.row_sums, self.row_counts), (self.column_sums, self.column_counts)
        sums, counts, column_sums, column_counts = (each.astype(np.float64) for each in (*by_row, *by_column))
        scales = scales_of_sums(sums, counts, column_sums, column_counts, variance)
        self.row_scales[:], self.column_scales[:] = scales.rows, scales.columns
        return scales


class ScaledBackend(Protocol):
    """Something that walks over the entries of a plan's clipped matrices."""

    def __init__(self, plan: KernelPlan, shapes: list[MatricesOfOneShape], transposed: bool): ...

    def scan(self, plan: KernelPlan, ceilings: NDArray[np.int32]) -> None:
        """Take the gradients into the moments, and write the sums and counts of all matrices."""
        ...

    def sketch(self, first_rows: NDArray[np.int64]) -> None:
        """Write the sketches of all matrices, of every so many rows beginning with these."""
        ...

    def move(self, operators: NDArray[np.int64], thresholds: NDArray[np.float32], slopes: NDArray[np.float32]) -> None:
        """Move the weights of all matrices."""
        ...


class ScaledMatrices:
    """All clipped matrices of a plan, by their shapes.

    memory      of the rule: sketches (matrices, 256) and levels (matrices, 1, 1), looks (parameters,)
    clipped     the parameters, which come first in the plan
    """

    def __init__(
        self,
        plan: KernelPlan,
        clip: Clip,
        memory: State,
        clipped: Sequence[Tensor],
        layout: Layout,
        backend: type[ScaledBackend],
    ):
        assert isinstance(clip.rule, Auto)
        self._rule, self._operator, self._memory = clip.rule, clip.operator, memory
        self._of_parameter = plan.owner[: plan.clipped]
        by_shape: dict[tuple[int, int], list[int]] = {}
        for i, parameter in enumerate(self._of_parameter):
            m, n = (1, 1, *layout.shape(clipped[parameter].shape))[-2:]  # a vector is a row
            by_shape.setdefault((m, n), []).append(i)
        self._shapes = [MatricesOfOneShape(np.array(index), shape) for shape, index in by_shape.items()]
        self._strides = np.ones(plan.clipped, np.int64)
        for matrices in self._shapes:
            self._strides[matrices.index] = matrices.stride
        self._backend = backend(plan, self._shapes, layout.transposed)

    def step_(self, plan: KernelPlan) -> None:
        """Take the gradients in and move the weights, each matrix clipped as its entries call for."""
        memory = self._memory
        variance, ceiling = expected(memory)
        self._backend.scan(plan, ceiling_bits(ceiling).reshape(-1))
        scales = [matrices.set_scales(variance[matrices.index]) for matrices in self._shapes]
        self._backend.sketch(memory["looks"].astype(np.int64)[self._of_parameter] % self._strides)
        operators = np.full(plan.clipped, int(Operator.HARD))
        thresholds, slopes = np.ones(plan.clipped, np.float32), np.ones(plan.clipped, np.float32)
        used = np.zeros(len(memory["looks"]), bool)
        for matrices, found in zip(self._shapes, scales, strict=True):
            at = matrices.index
            before = {"sketch": memory["sketch"][at], "level": memory["level"][at], "looks": np.float32(0)}
            seen, after = self._rule.follow(matrices.sketch, found, matrices.shape, before)
            decision = self._rule.decide(seen, self._operator, matrices.shape)
            operators[at[decision.clips.reshape(-1)]] = int(OPERATORS[self._operator])
            thresholds[at], slopes[at] = decision.threshold.reshape(-1), decision.slope.reshape(-1)
            memory["sketch"][at], memory["level"][at] = after["sketch"], after["level"]
            used[self._of_parameter[at[found.count.reshape(-1) > 0]]] = True
        memory["looks"] += used
        self._backend.move(operators, thresholds, slopes)
