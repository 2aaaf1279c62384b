"""The backend on a GPU for thresholds that follow the scales of rows and columns: launches of triton_scaled.py.

Five launches step all clipped matrices of a group, whatever their shapes. The host reads nothing back.
"""

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...auto_threshold import gaussian_guard, rows_in_turn
from ...efficiency import BINS, efficiency_tables
from . import triton_decision as decision
from . import triton_scaled as kernels
from .plan import OPERATORS, KernelPlan
from .scaled_matrices import ScaledMatrices

if TYPE_CHECKING:
    from .gpu import GPUBackend

_CANDIDATES = decision.CANDIDATES.value


class ScaledGPUBackend:
    """Carries out the step of a plan's clipped matrices on a device: see `scaled_matrices.ScaledBackend`.

    The tables of addresses and constants are those that `backend` uploads for the step.
    """

    stages: ClassVar[frozenset[str]] = frozenset({"grad", "post"})
    chunk = 8  # bins of a sketch that a decision works on at a time

    def __init__(self, plan: KernelPlan, backend: "GPUBackend"):
        assert plan.scaled is not None
        self._scaled, self._backend, count = plan.scaled, backend, plan.clipped
        shapes = _stored_shapes(plan.scaled, plan.owner[:count])
        tile_rows, lanes = backend.tile // kernels.LANES.value, kernels.LANES.value
        sides = shapes[:, [kernels.ROWS.value, kernels.COLUMNS.value]]
        looked = shapes[:, kernels.LOOKED.value] * np.array([n for _, n in plan.scaled.shapes])
        self._tiles = backend.upload(_parts(-(-sides // np.array([tile_rows, lanes]))))
        self._looked_tiles = backend.upload(_parts(-(-looked[:, None] // backend.tile)))
        self._shapes = backend.upload(shapes)
        new: Any = {"device": self._shapes.device}
        lines = int(sides.sum())
        self._sums = torch.zeros(lines, dtype=torch.int64, **new)  # of bit patterns; `scale` leaves them empty
        self._zeros = torch.zeros(lines, dtype=torch.int32, **new)
        self._excess = torch.zeros(count, dtype=torch.int64, **new)  # `scale` leaves it empty, too
        self._scales = torch.ones(lines, dtype=torch.float32, **new)
        self._counts = torch.zeros(count, BINS, dtype=torch.int32, **new)  # `decide` leaves them empty
        self._found = torch.zeros(count, kernels.FOUND_COLUMNS.value, dtype=torch.float32, **new)
        self._decisions = torch.zeros(count, kernels.DECISION_COLUMNS.value, dtype=torch.float32, **new)
        rule = plan.scaled.rule
        guards = [gaussian_guard(m, n, rule.false_alarms) for m, n in plan.scaled.shapes]
        self._guards = backend.upload(np.array(guards, np.float32))
        self._tables, self._candidates = _tables(plan.scaled.operator, self._guards)

    def step_(self, plan: KernelPlan) -> None:
        """Take the gradients in and move the weights, each matrix clipped as its entries call for."""
        backend, scaled, memory = self._backend, self._scaled, self._scaled.memory
        entries = (backend.tables.addresses, backend.tables.constants)
        tile = {"TILE": backend.tile, "BLOCK": backend.block}
        chosen = {"OF_GRADIENT": scaled.of_gradient, **tile}
        half, tiles = backend.has_half, (self._tiles, self._shapes)
        sums, results = (self._sums, self._zeros, self._excess), (self._found, self._decisions)
        slopes, powers, sizes, log_sizes, thresholds = self._tables

        def launch(kernel: Any, programs: Tensor, *arguments: Any, **constants: Any) -> None:
            backend.launch(kernel, len(programs), *arguments, **constants)

        launch(kernels.scan, self._tiles, *entries, *tiles, memory["level"], *sums, HALF=half, **chosen)
        remembered = (memory["sketch"], memory["level"], memory["looks"])
        arrays: tuple[Tensor, ...] = (self._shapes, *sums, self._scales, *remembered, log_sizes, self._found)
        launch(decision.scale, self._shapes, *arrays, BLOCK=512)
        looked = (self._looked_tiles, self._shapes, self._scales, self._found, self._counts)
        launch(kernels.sketch, self._looked_tiles, *entries, *looked, **chosen)
        numbers = (self._candidates, scaled.rule.margin, scaled.rule.beta)
        arrays = (self._shapes, self._guards, *remembered, self._counts, *results, slopes, powers, sizes, thresholds)
        launch(decision.decide, self._shapes, *arrays, *numbers, CHUNK=self.chunk)
        arrays = (*entries, *tiles, self._scales, self._decisions)
        flags = {"OPERATOR": int(OPERATORS[scaled.operator]), "LIMITS": not plan.propagate, "HALF": half}
        launch(kernels.move, self._tiles, *arrays, **flags, **chosen)


def _stored_shapes(scaled: ScaledMatrices, parameters: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the columns of `shapes` in triton_scaled.py, one row for each matrix."""
    shapes = np.zeros((len(scaled.shapes), kernels.SHAPE_COLUMNS.value), np.int64)
    start = 0
    for shape, (m, n), parameter in zip(shapes, scaled.shapes, parameters, strict=True):
        # A single column lies in memory as a single row does, which is read faster.
        flips = (scaled.transposed or n == 1) and m > 1
        rows, columns = (n, m) if flips else (m, n)
        shape[:] = rows, columns, start, flips, parameter, *rows_in_turn(m, n)
        start += m + n
    return shapes


def _parts(counts: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return a row (matrix, part, ...) for every part of every matrix; `counts` has those along each dimension."""
    found = [np.stack(np.unravel_index(np.arange(each.prod()), each), 1) for each in counts]
    matrix = np.repeat(np.arange(len(counts)), [len(each) for each in found])
    return np.column_stack([matrix, np.concatenate(found)]).astype(np.int32)


def _tables(operator: Any, like: Tensor) -> tuple[tuple[Tensor, ...], int]:
    """Return slopes, powers, sizes, their logarithms and the candidate thresholds on the device, and how many.

    The columns of the tables are filled up to a power of two.
    """
    slopes, powers, sizes, thresholds = efficiency_tables(operator, like)
    more = _CANDIDATES - len(thresholds)
    filled = [torch.nn.functional.pad(each, (0, more)).contiguous() for each in (slopes, powers, thresholds)]
    return (filled[0], filled[1], sizes, sizes.log2(), filled[2]), len(thresholds)
