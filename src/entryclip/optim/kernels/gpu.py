"""The backend for a GPU: tables of addresses, tiles, and the launches of the Triton kernels.

A launch covers all matrices of a group. Nothing is read back from the device, so the host never waits for it.
"""

from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from ...dtensor import all_reduce
from ...quantiles import triton_digits as digits
from ...quantiles.gpu import PRECISIONS
from ..capture import is_capturing
from . import triton_kernels as kernels
from . import triton_momentum as momentum
from . import triton_search as searching
from .captured_upload import CapturedUpload
from .plan import DirectionKind, KernelPlan, Operator, ThresholdSource
from .scaled_gpu import ScaledGPUBackend
from .scaled_matrices import ScaledBackend

_SHIFTS = (24, 16, 8, 0)  # of the digits of a magnitude's bit pattern, the highest first
_TABLE, _CONSTANTS = kernels.TABLE_COLUMNS.value, kernels.CONSTANT_COLUMNS.value


class GPUBackend:
    """Carries out the plans of one group on a device by Triton's kernels.

    An exact quantile takes eleven launches whatever the number of matrices, a threshold that is known before the step
    one, a clip that keeps the root mean square one more; thresholds by rows and columns take six. Results are the same
    to the bit in every run.
    """

    uses_torch: ClassVar[bool] = True
    kinds: ClassVar[frozenset[DirectionKind]] = frozenset(DirectionKind)
    takes_half: ClassVar[frozenset[DirectionKind]] = frozenset({DirectionKind.ADAM})
    preserves_rms: ClassVar[frozenset[DirectionKind]] = frozenset({DirectionKind.ADAM})
    spans_processes: ClassVar[bool] = True
    scaled: ClassVar[type[ScaledBackend] | None] = ScaledGPUBackend
    tile = 8192  # entries that one program works on; below 2^15, for its counts share a register
    block = 1024 if torch.version.hip else 512  # entries that it holds at a time: four, 16 bytes, for each thread
    warps = 4

    def __init__(self, plan: KernelPlan):
        self._device = plan.bindings[0].w.device
        self._step = _StepTables(plan, self.tile)
        self._captured = CapturedUpload(self._step.size, self._device)
        self._owner = self.upload(plan.owner)
        self._room = max(self.tile // 16, 1)  # magnitudes that a tile can keep; more are made anew
        walked = range(plan.clipped if plan.is_scaled else 0, len(plan.size))  # the others are left to `scaled`
        tiles = [(row, part) for row in walked for part in range(-(-int(plan.size[row]) // self.tile))]
        self._tiles = self.upload(np.array(tiles, np.int32).reshape(-1, 2))
        self._clipped_tiles = sum(row < plan.clipped for row, _ in tiles)
        self._source = b""  # the sources for which `_ready` holds
        self._ready = torch.ones(len(plan.owner), dtype=torch.int32, device=self._device)
        self._make_search(plan)
        self._make_norms(plan)

    def run(self, plan: KernelPlan) -> Tensor:
        """Do the step: see `plan.Backend`."""
        self.tables = self._upload_tables(plan)
        if plan.is_scaled:
            if len(self._tiles):
                self._walk(plan, self.tables.thresholds, update=True, rms=kernels.NO_RMS)
            return torch.zeros(plan.clipped, device=self._device)
        self._set_ready(plan)
        on_device = isinstance(plan.threshold, Tensor)  # `move` follows where a threshold is awaited
        thresholds = _vector(plan.threshold) if on_device else self.tables.thresholds
        is_known = on_device or bool((plan.source == ThresholdSource.KNOWN).any())
        measures = plan.preserve_rms and is_known
        self._walk(plan, thresholds, update=True, rms=kernels.MEASURE if measures else kernels.NO_RMS)
        if plan.q is None or not plan.clipped:
            quantiles = torch.zeros(plan.clipped, device=self._device)
        else:
            self._select(plan)
            quantiles, thresholds = self._estimates[:, kernels.QUANTILE.value], self._thresholds
        if plan.clipped and not on_device and (plan.preserve_rms or not is_known):
            self._move(plan, thresholds, is_measured=is_known)
        return quantiles

    @property
    def has_half(self) -> bool:
        """Whether a gradient or a parameter of the last `run` is in half precision."""
        return self._step.has_half

    def _upload_tables(self, plan: KernelPlan) -> "_Views":
        """Copy this step's tables to the device. A CUDA graph does so at each replay, with the same gradients."""
        array = self._step.fill(plan)
        if plan.is_capturable and not is_capturing():
            self._captured.prepare()
        tables = self._step.views(self._captured.upload(array) if is_capturing() else self.upload(array))
        constants = tables.constants.view(len(plan.owner), _CONSTANTS)
        for name, value in plan.device_constants.items():
            column = constants[:, plan.constants[0]._fields.index(name)]
            column.copy_(value[self._owner] if value.ndim else value)
        return tables

    def move(self, plan: KernelPlan, thresholds: Tensor) -> None:
        """Move the matrices whose threshold was awaited: see `plan.Backend`."""
        self._move(plan, _vector(thresholds))

    def _move(self, plan: KernelPlan, thresholds: Tensor, *, is_measured: bool = False) -> None:
        """Move the clipped matrices that have not moved yet; `is_measured` says whether all their norms are there."""
        if plan.preserve_rms and not is_measured:
            self._walk(plan, thresholds, rms=kernels.MEASURE)
        self._walk(plan, thresholds, rms=kernels.RESTORE if plan.preserve_rms else kernels.NO_RMS)

    def hits(self, plan: KernelPlan) -> Tensor:
        """Tell which brackets held their quantile: see `plan.Backend`."""
        return self._search[:, kernels.IS_HIT.value] != 0

    def inverse_norms(self, plan: KernelPlan) -> Tensor:
        """Return one over the Frobenius norm of each matrix in the plan's outputs: see `plan.DirectionBackend`."""
        inverse = torch.empty(len(plan.owner), dtype=torch.float32, device=self._device)
        self.launch(momentum.inverse_norms, len(plan.owner), self.tables.addresses, self._squares, inverse, BLOCK=128)
        return inverse

    def _make_search(self, plan: KernelPlan) -> None:
        """Allocate what the search for quantiles keeps on the device. Without a guess a bracket is empty."""
        count = plan.clipped if plan.q is not None else 0
        new: Any = {"device": self._device}
        self._search = torch.zeros(count, kernels.SEARCH_COLUMNS.value, dtype=torch.int64, **new)
        self._search[:, kernels.LOW.value : kernels.HIGH.value + 1] = digits.LARGEST.value
        self._estimates = torch.zeros(count, kernels.ESTIMATE_COLUMNS.value, dtype=torch.float64, **new)
        self._estimates[:, kernels.WIDTH.value] = kernels.WIDEST.value
        self._histogram = torch.zeros(count, digits.BINS.value, dtype=torch.int64, **new)
        self._thresholds = torch.zeros(count, dtype=torch.float32, **new)
        self._totals = self.upload((plan.size[:count] if plan.total is None else plan.total).astype(np.int64))
        self._level = torch.full((1,), plan.q or 0.0, dtype=torch.float64, **new)
        programs = self._clipped_tiles if count else 0
        self._kept = torch.empty(programs * self._room, dtype=torch.int32, **new)
        self._kept_counts = torch.zeros(programs, dtype=torch.int32, **new)

    def _make_norms(self, plan: KernelPlan) -> None:
        """Allocate what sums of squares need on the device: see triton_norms.py, and triton_momentum.py."""
        squares = 0 if plan.kind is DirectionKind.ADAM else len(self._tiles)
        self._squares = torch.zeros(squares, dtype=torch.float64, device=self._device)
        matrices, tiles = (plan.clipped, self._clipped_tiles) if plan.preserve_rms else (0, 0)
        self._partials = torch.zeros(tiles, 2, dtype=torch.float64, device=self._device)
        self._factors = torch.zeros(matrices, 2, dtype=torch.float32, device=self._device)
        self._arrivals = torch.zeros(matrices, dtype=torch.int32, device=self._device)

    def _set_ready(self, plan: KernelPlan) -> None:
        """Mark the matrices that move in the first walk. Matrices that are not clipped always do."""
        if isinstance(plan.source, Tensor):
            self._ready[: plan.clipped] = plan.source == ThresholdSource.KNOWN
        elif plan.source.tobytes() != self._source:
            self._source = plan.source.tobytes()
            ready = np.ones(len(plan.owner), np.int32)
            ready[: plan.clipped] = plan.source == ThresholdSource.KNOWN
            self._ready = self.upload(ready)

    def _walk(self, plan: KernelPlan, thresholds: Tensor, *, rms: Any, update: bool = False) -> None:
        """Launch one pass over the matrices: of all with `update`, else of clipped ones."""
        tables = self.tables
        programs = len(self._tiles) if update else self._clipped_tiles
        arrays: tuple[Any, ...] = (self._ready, thresholds, self._search, self._kept, self._kept_counts)
        if plan.kind is DirectionKind.ADAM:
            kernel, arrays = kernels.walk, (*arrays, self._partials, self._factors, self._arrivals)
            own = {"RMS": rms.value, "HALF": self._step.has_half}
        else:
            kernel, arrays = momentum.walk, (*arrays, self._squares)
            own = {"KIND": int(plan.kind), "OUTPUT": _output_format(plan)}
        self.launch(
            kernel,
            programs,
            *(tables.addresses, tables.constants, self._tiles, *arrays, plan.clipped),
            **own,
            UPDATE=update,
            LOOK=update and plan.q is not None,
            OPERATOR=int(Operator.NONE if plan.is_scaled else plan.operator),
            LIMITS=not plan.propagate,
            **{"TILE": self.tile, "BLOCK": self.block, "ROOM": self._room},
        )

    def _select(self, plan: KernelPlan) -> None:
        """Find the quantile of every clipped matrix: nine launches, and six exchanges where matrices are sharded."""
        tables, shape = self.tables, {"TILE": self.tile, "BLOCK": self.block, "ROOM": self._room}
        search, histogram, totals = self._search, self._histogram, self._totals
        kept = (self._kept, self._kept_counts)
        if plan.over:
            counts = search[:, kernels.ZEROS.value : kernels.INSIDE.value + 1].contiguous()
            all_reduce(counts, dist.ReduceOp.SUM, plan.over)
            search[:, kernels.ZEROS.value : kernels.INSIDE.value + 1] = counts
        self.launch(searching.locate, plan.clipped, totals, search, self._estimates, self._level)
        for shift in _SHIFTS:
            arrays = (tables.addresses, tables.constants, self._tiles, search, histogram, *kept, shift)
            self.launch(searching.digit, self._clipped_tiles, *arrays, KIND=int(plan.kind), LAST=shift == 0, **shape)
            all_reduce(histogram, dist.ReduceOp.SUM, plan.over)
            if shift == 0 and plan.over:
                self._reduce_ends(plan)
            results = (self._estimates, self._level, tables.multiples, self._thresholds)
            self.launch(searching.choose, plan.clipped, totals, search, histogram, *results, LAST=shift == 0)

    def _reduce_ends(self, plan: KernelPlan) -> None:
        """Take the largest magnitude and the smallest beyond the last digit over all processes, as one minimum."""
        top, beyond = kernels.TOP.value, kernels.BEYOND.value
        ends = torch.stack([-self._search[:, top], self._search[:, beyond]])
        all_reduce(ends, dist.ReduceOp.MIN, plan.over)
        self._search[:, top], self._search[:, beyond] = -ends[0], ends[1]

    def launch(self, kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
        """Launch one kernel on the device of the tensors, without fusing its operations: see triton_kernels.py."""
        if not programs:
            return
        with torch.cuda.device_of(self._tiles):  # type: ignore[no-untyped-call]
            kernel[(programs,)](*arguments, **constants, num_warps=self.warps, enable_fp_fusion=False)

    def upload(self, array: NDArray[Any]) -> Tensor:
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

    def __init__(self, plan: KernelPlan, tile: int):
        rows, clipped = len(plan.owner), plan.clipped
        sizes = [8 * _TABLE * rows, 8 * clipped, 4 * _CONSTANTS * rows, 4 * clipped]  # bytes, in the order of _Views
        self._parts = []
        start = 0
        for size in sizes:
            self._parts.append(slice(start, start + size))
            start += -(-size // 16) * 16  # each part at a multiple of 16 bytes: Triton compiles anew for any other
        self.size = start
        self._bytes = np.zeros(start, np.uint8)
        self.has_half = False  # whether a gradient or a parameter is in half precision
        first, second, third, fourth = (self._bytes[part] for part in self._parts)
        self._addresses = first.view(np.int64).reshape(rows, _TABLE)
        self._multiples, self._thresholds = second.view(np.float64), fourth.view(np.float32)
        self._constants = third.view(np.float32).reshape(rows, _CONSTANTS)
        own = np.array([each.addresses for each in plan.bindings], np.int64)
        for column, addresses in zip((kernels.P, kernels.M, kernels.V), own.T, strict=False):
            self._addresses[:, column.value] = addresses[plan.owner] + 4 * plan.start
        self._addresses[:, kernels.N.value] = plan.size
        tiles = -(-plan.size // tile)
        self._addresses[:, kernels.FIRST_TILE.value] = np.cumsum(tiles) - tiles
        self._addresses[:, kernels.TILES.value] = tiles
        self._place(
            plan, kernels.H, kernels.H_PRECISION, [each.w if each.half is None else each.half for each in plan.bindings]
        )

    def fill(self, plan: KernelPlan) -> NDArray[np.uint8]:
        """Write this step's gradients, constants and thresholds, as far as the host has them."""
        table = self._addresses
        self._place(plan, kernels.G, kernels.G_PRECISION, plan.gradients)
        if plan.outputs:
            table[:, momentum.OUT.value] = _addresses(plan, plan.outputs)
        of_entries = table[:, [column.value for column in (kernels.P, kernels.G, kernels.M, kernels.V, kernels.H)]]
        table[:, kernels.IS_ALIGNED.value] = (of_entries % 16 == 0).all(1)
        self.has_half = bool(table[:, [kernels.G_PRECISION.value, kernels.H_PRECISION.value]].any())
        constants = np.array(plan.constants, np.float32)
        self._constants[:, : constants.shape[1]] = constants if len(constants) == 1 else constants[plan.owner]
        if plan.clipped and not (plan.is_scaled or isinstance(plan.threshold, Tensor)):
            self._multiples[:], self._thresholds[:] = plan.multiple, plan.threshold
        return self._bytes

    def _place(self, plan: KernelPlan, column: Any, precision: Any, tensors: list[Tensor]) -> None:
        """Write the addresses of the matrices in `tensors`, one for each binding, and their precisions."""
        self._addresses[:, column.value] = _addresses(plan, tensors)
        self._addresses[:, precision.value] = np.array([PRECISIONS[t.dtype].value for t in tensors])[plan.owner]

    def views(self, uploaded: Tensor) -> _Views:
        """Return the tables in the uploaded array."""
        types = (torch.int64, torch.float64, torch.float32, torch.float32)
        return _Views(*(uploaded[part].view(dtype) for part, dtype in zip(self._parts, types, strict=True)))


def _addresses(plan: KernelPlan, tensors: list[Tensor]) -> NDArray[np.int64]:
    """Return where each matrix of the plan begins in `tensors`, one for each binding."""
    first = np.array([(t.data_ptr(), t.element_size()) for t in tensors], np.int64)[plan.owner]
    return first[:, 0] + first[:, 1] * plan.start


def _output_format(plan: KernelPlan) -> int:
    """Return OUTPUT of triton_momentum.walk: 0 to move the weights, 1 for outputs in fp32, 2 for bf16."""
    return 0 if not plan.outputs else 1 if plan.outputs[0].dtype == torch.float32 else 2


def _vector(thresholds: Tensor) -> Tensor:
    """Return thresholds as a kernel reads them."""
    return thresholds.to(torch.float32).contiguous()
