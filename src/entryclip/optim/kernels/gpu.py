"""The backend for a GPU: tables of addresses, tiles, and the launches of the Triton kernels.

A launch covers all matrices of a group. Nothing is read back from the device, so the host never waits for it.
"""

import inspect
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import triton
from numpy.typing import NDArray
from torch import Tensor

from ...dtensor import all_reduce
from . import triton_kernels as kernels
from . import triton_search as searching
from .plan import KernelPlan, ThresholdSource

if "mask" not in inspect.signature(triton.language.histogram).parameters:
    raise ImportError(f"Triton {triton.__version__} is too old, 3.4 or newer is needed: its histogram takes no mask")

_SHIFTS = (24, 16, 8, 0)  # of the digits of a magnitude's bit pattern, the highest first
_TABLE, _CONSTANTS = kernels.TABLE_COLUMNS.value, kernels.CONSTANT_COLUMNS.value


class GPUBackend:
    """Carries out the plans of one group on a device by Triton's kernels.

    An exact quantile takes eleven launches whatever the number of matrices, a threshold that is known before the step
    one. Results are the same to the bit in every run.
    """

    uses_torch: ClassVar[bool] = True
    spans_processes: ClassVar[bool] = True
    tile = 8192  # entries that one program works on; below 2^15, for its counts share a register
    block = 1024 if torch.version.hip else 512  # entries that it holds at a time: four, 16 bytes, for each thread
    warps = 4

    def __init__(self, plan: KernelPlan):
        self._device = plan.bindings[0].w.device
        self._step = _StepTables(plan)
        self._room = max(self.tile // 16, 1)  # magnitudes that a tile can keep; more are made anew
        tiles = [(row, part) for row, n in enumerate(plan.size) for part in range(-(-int(n) // self.tile))]
        self._tiles = self._upload(np.array(tiles, np.int32).reshape(-1, 2))
        self._clipped_tiles = sum(row < plan.clipped for row, _ in tiles)
        self._source = b""  # the sources for which `_ready` holds
        self._ready = torch.ones(len(plan.owner), dtype=torch.int32, device=self._device)
        self._make_search(plan)

    def run(self, plan: KernelPlan) -> Tensor:
        """Do the step: see `plan.Backend`."""
        self._tables = self._step.views(self._upload(self._step.fill(plan)))
        self._set_ready(plan)
        on_device = isinstance(plan.threshold, Tensor)
        self._walk(plan, _vector(plan.threshold) if on_device else self._tables.thresholds, update=True)
        if plan.q is None or not plan.clipped:
            return torch.zeros(plan.clipped, device=self._device)
        self._select(plan)
        if not on_device:
            self._walk(plan, self._thresholds, update=False)
        return self._estimates[:, kernels.QUANTILE.value]

    def move(self, plan: KernelPlan, thresholds: Tensor) -> None:
        """Move the matrices whose threshold was awaited: see `plan.Backend`."""
        self._walk(plan, _vector(thresholds), update=False)

    def _make_search(self, plan: KernelPlan) -> None:
        """Allocate what the search for quantiles keeps on the device. Without a guess a bracket is empty."""
        count = plan.clipped if plan.q is not None else 0
        new: Any = {"device": self._device}
        self._search = torch.zeros(count, kernels.SEARCH_COLUMNS.value, dtype=torch.int64, **new)
        self._search[:, kernels.LOW.value : kernels.HIGH.value + 1] = kernels.LARGEST.value
        self._estimates = torch.zeros(count, kernels.ESTIMATE_COLUMNS.value, dtype=torch.float64, **new)
        self._estimates[:, kernels.WIDTH.value] = kernels.WIDEST.value
        self._histogram = torch.zeros(count, kernels.BINS.value, dtype=torch.int64, **new)
        self._thresholds = torch.zeros(count, dtype=torch.float32, **new)
        self._totals = self._upload((plan.size[:count] if plan.total is None else plan.total).astype(np.int64))
        self._level = torch.full((1,), plan.q or 0.0, dtype=torch.float64, **new)
        programs = self._clipped_tiles if count else 0
        self._kept = torch.empty(programs * self._room, dtype=torch.int32, **new)
        self._kept_counts = torch.zeros(programs, dtype=torch.int32, **new)

    def _set_ready(self, plan: KernelPlan) -> None:
        """Mark the matrices that move in the first walk. Matrices that are not clipped always do."""
        if isinstance(plan.source, Tensor):
            self._ready[: plan.clipped] = plan.source == ThresholdSource.KNOWN
        elif plan.source.tobytes() != self._source:
            self._source = plan.source.tobytes()
            ready = np.ones(len(plan.owner), np.int32)
            ready[: plan.clipped] = plan.source == ThresholdSource.KNOWN
            self._ready = self._upload(ready)

    def _walk(self, plan: KernelPlan, thresholds: Tensor, *, update: bool) -> None:
        """Launch one pass over the matrices: of all with `update`, else of those that have not moved yet."""
        tables = self._tables
        programs = len(self._tiles) if update else self._clipped_tiles
        arrays = (self._ready, thresholds, self._search, self._kept, self._kept_counts)
        self._launch(
            kernels.walk,
            programs,
            *(tables.addresses, tables.constants, self._tiles, *arrays, plan.clipped),
            UPDATE=update,
            LOOK=update and plan.q is not None,
            OPERATOR=int(plan.operator),
            LIMITS=not plan.propagate,
            **{"TILE": self.tile, "BLOCK": self.block, "ROOM": self._room},
        )

    def _select(self, plan: KernelPlan) -> None:
        """Find the quantile of every clipped matrix: nine launches, and six exchanges where matrices are sharded."""
        tables, shape = self._tables, {"TILE": self.tile, "BLOCK": self.block, "ROOM": self._room}
        search, histogram, totals = self._search, self._histogram, self._totals
        kept = (self._kept, self._kept_counts)
        if plan.over:
            counts = search[:, kernels.ZEROS.value : kernels.INSIDE.value + 1].contiguous()
            all_reduce(counts, dist.ReduceOp.SUM, plan.over)
            search[:, kernels.ZEROS.value : kernels.INSIDE.value + 1] = counts
        self._launch(searching.locate, plan.clipped, totals, search, self._estimates, self._level)
        for shift in _SHIFTS:
            arrays = (tables.addresses, tables.constants, self._tiles, search, histogram, *kept, shift)
            self._launch(searching.digit, self._clipped_tiles, *arrays, LAST=shift == 0, **shape)
            all_reduce(histogram, dist.ReduceOp.SUM, plan.over)
            if shift == 0 and plan.over:
                self._reduce_ends(plan)
            results = (self._estimates, self._level, tables.multiples, self._thresholds)
            self._launch(searching.choose, plan.clipped, totals, search, histogram, *results, LAST=shift == 0)

    def _reduce_ends(self, plan: KernelPlan) -> None:
        """Take the largest magnitude and the smallest beyond the last digit over all processes, as one minimum."""
        top, beyond = kernels.TOP.value, kernels.BEYOND.value
        ends = torch.stack([-self._search[:, top], self._search[:, beyond]])
        all_reduce(ends, dist.ReduceOp.MIN, plan.over)
        self._search[:, top], self._search[:, beyond] = -ends[0], ends[1]

    def _launch(self, kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
        """Launch one kernel on the device of the tensors, without fusing its operations: see triton_kernels.py."""
        if not programs:
            return
        with torch.cuda.device_of(self._tiles):  # type: ignore[no-untyped-call]
            kernel[(programs,)](*arguments, **constants, num_warps=self.warps, enable_fp_fusion=False)

    def _upload(self, array: NDArray[Any]) -> Tensor:
        """Copy an array to the device. Torch keeps the pinned copy until the device has read it."""
        host = torch.from_numpy(array)
        return host.clone() if self._device.type == "cpu" else host.pin_memory().to(self._device, non_blocking=True)


class _Views(NamedTuple):
    """The tables of one step on the device, as parts of one uploaded array."""

    addresses: Tensor
    multiples: Tensor
    constants: Tensor
    thresholds: Tensor


class _StepTables:
    """The numbers that the kernels need anew in each step, in one array of bytes: a single copy to the device."""

    def __init__(self, plan: KernelPlan):
        rows, clipped = len(plan.owner), plan.clipped
        sizes = [8 * _TABLE * rows, 8 * clipped, 4 * _CONSTANTS * rows, 4 * clipped]  # bytes, in the order of _Views
        self._parts = []
        start = 0
        for size in sizes:
            self._parts.append(slice(start, start + size))
            start += -(-size // 16) * 16  # each part at a multiple of 16 bytes: Triton compiles anew for any other
        self._bytes = np.zeros(start, np.uint8)
        first, second, third, fourth = (self._bytes[part] for part in self._parts)
        self._addresses = first.view(np.int64).reshape(rows, _TABLE)
        self._multiples, self._thresholds = second.view(np.float64), fourth.view(np.float32)
        self._constants = third.view(np.float32).reshape(rows, _CONSTANTS)
        self._offset = 4 * plan.start
        own = np.array([each.addresses for each in plan.bindings], np.int64).reshape(-1, 3)
        for column, addresses in zip((kernels.P, kernels.M, kernels.V), own.T, strict=True):
            self._addresses[:, column.value] = addresses[plan.owner] + self._offset
        self._addresses[:, kernels.N.value] = plan.size

    def fill(self, plan: KernelPlan) -> NDArray[np.uint8]:
        """Write this step's gradients, constants and thresholds, as far as the host has them."""
        table = self._addresses
        table[:, kernels.G.value] = np.array([g.data_ptr() for g in plan.gradients])[plan.owner] + self._offset
        of_entries = table[:, [column.value for column in (kernels.P, kernels.G, kernels.M, kernels.V)]]
        table[:, kernels.IS_ALIGNED.value] = (of_entries % 16 == 0).all(1)
        constants = np.array(plan.constants, np.float32)
        self._constants[:] = constants if len(constants) == 1 else constants[plan.owner]
        if plan.clipped and not isinstance(plan.threshold, Tensor):
            self._multiples[:], self._thresholds[:] = plan.multiple, plan.threshold
        return self._bytes

    def views(self, uploaded: Tensor) -> _Views:
        """Return the tables in the uploaded array."""
        types = (torch.int64, torch.float64, torch.float32, torch.float32)
        return _Views(*(uploaded[part].view(dtype) for part, dtype in zip(self._parts, types, strict=True)))


def _vector(thresholds: Tensor) -> Tensor:
    """Return thresholds as a kernel reads them."""
    return thresholds.to(torch.float32).contiguous()
