"""The plan of a fused step: what is to be done with each matrix of a param group, whichever backend does it.

The matrices of all bound parameters stand in one table, the clipped ones first. Each clipped matrix has a threshold
that is known before the data is seen, or is a multiple of this step's quantile of |u|, or has to be asked of the rule
once the quantile is there (`ThresholdSource`). How a backend finds a quantile is its own matter: it is always exact.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ...arrays import Array
from ...operators import hard_clip, smooth_shrinkage
from ..groups import Group, ParameterState
from .binding import ParameterBinding

if TYPE_CHECKING:
    from .scaled_matrices import ScaledBackend, ScaledMatrices


class Operator(enum.IntEnum):
    """The operators that a fused step can apply."""

    NONE = 0
    SMOOTH = 1
    HARD = 2


OPERATORS: dict[Any, Operator] = {smooth_shrinkage: Operator.SMOOTH, hard_clip: Operator.HARD}


class ThresholdSource(enum.IntEnum):
    """Where the threshold of a matrix comes from in this step."""

    KNOWN = 0  # `threshold` holds it
    PROPORTIONAL = 1  # `multiple` times the quantile, which the backend applies itself
    AWAITED = 2  # the rule makes it from the quantile: the backend leaves the matrix for `move`


class DirectionKind(enum.IntEnum):
    """How the direction u is made of a parameter's gradient g and its buffers, which take the gradient in before."""

    ADAM = 0  # m / (a sqrt(v) + b)
    MOMENTUM = 1  # m
    NESTEROV = 2  # a m + b g
    GRADIENT = 3  # b g, without any buffer


class AdamConstants(NamedTuple):
    """One parameter's numbers of an AdamW step, with u = m / (a sqrt(v) + b) the bias-corrected direction."""

    sign: float  # -1 to maximize
    beta1: float
    fresh1: float  # 1 - beta1
    beta2: float
    fresh2: float  # 1 - beta2
    a: float
    b: float
    decay: float  # the factor on the weights
    lr: float


class MomentumConstants(NamedTuple):
    """The numbers of a step with momentum: m <- keep m + fresh g, u = a m + b g. fresh and b are < 0 to maximize."""

    keep: float
    fresh: float
    a: float
    b: float
    decay: float  # the factor on the weights
    lr: float


@dataclass
class KernelPlan:
    """All matrices of a group's fused step, and what is to be done with each.

    Arrays have one entry per matrix; those about thresholds and quantiles one per clipped matrix.
    """

    bindings: list[ParameterBinding]
    owner: NDArray[np.int64]  # the binding that a matrix belongs to
    start: NDArray[np.int64]  # its first entry in the parameter
    size: NDArray[np.int64]  # its number of entries
    clipped: int  # how many matrices are clipped: these come first
    operator: Operator = Operator.NONE
    q: float | None = None  # the level of the quantile of the non-zero |u| that is asked for, if any
    # Of matrices that are sharded over processes, `start` and `size` are those of the local shard.
    over: list[Any] = field(default_factory=list)  # the process groups whose counts are summed
    total: NDArray[np.int64] | None = None  # entries of each clipped matrix on all processes; None: as `size`
    propagate: bool = True  # a non-finite u comes out NaN, whatever the operator's limit
    preserve_rms: bool = False  # each clipped matrix is scaled back to the root mean square of its u
    scaled: "ScaledMatrices | None" = None  # the clipped matrices are left to a `ScaledBackend`, by what stands here
    kind: DirectionKind = DirectionKind.ADAM
    is_capturable: bool = False  # a CUDA graph may capture the step: the host reads nothing from the device
    # What changes from step to step.
    # Contiguous, one per binding; fp32, or half where the backend takes it.
    gradients: list[Tensor] = field(default_factory=list)
    # One per binding, or a single one for all.
    constants: Sequence[AdamConstants | MomentumConstants] = field(default_factory=list)
    # Fields of the constants that the host does not know, in a capturable step: one value per binding, or one for all.
    device_constants: dict[str, Tensor] = field(default_factory=dict)
    # Where the clipped directions go, one tensor per binding, fp32 or bf16. Without any, they move the weights.
    outputs: list[Tensor] = field(default_factory=list)
    # Of each clipped matrix: numpy arrays, or torch tensors on the device where the rule's memory is there.
    source: Array = field(default_factory=lambda: np.zeros(0, np.int64))  # of `ThresholdSource`
    threshold: Array = field(default_factory=lambda: np.zeros(0))
    multiple: Array = field(default_factory=lambda: np.zeros(0))

    @property
    def is_scaled(self) -> bool:
        """Whether the clipped matrices are left to a `ScaledBackend`."""
        return self.scaled is not None


class Backend(Protocol):
    """Something that carries out plans, made for one plan whose per-step fields change."""

    # Whether a rule's memory, thresholds and quantiles are torch tensors on the parameters' device, so that the host
    # need not wait for them; else they are numpy arrays, whose small operations cost less.
    uses_torch: ClassVar[bool]
    kinds: ClassVar[frozenset[DirectionKind]]  # the directions that it can make
    # The kinds of which it reads gradients in half precision and writes the half parameters of fp32 weights.
    takes_half: ClassVar[frozenset[DirectionKind]]
    preserves_rms: ClassVar[frozenset[DirectionKind]]  # the kinds of which it carries out plans with `preserve_rms`
    spans_processes: ClassVar[bool]  # whether it finds the quantiles of matrices that are sharded over processes
    scaled: "ClassVar[type[ScaledBackend] | None]"  # what clips by the scales of rows and columns, in AdamW's step

    def __init__(self, plan: KernelPlan): ...

    def run(self, plan: KernelPlan) -> Array:
        """Take the gradients into the moments; move every matrix but those whose threshold is awaited.

        Returns the exact quantile of each clipped matrix at level `q`, (clipped,), undefined where `q` is None.
        """
        ...

    def move(self, plan: KernelPlan, thresholds: Array) -> None:
        """Move the matrices whose threshold was awaited; `thresholds` has one for each clipped matrix."""
        ...

    def hits(self, plan: KernelPlan) -> Array:
        """Tell which brackets of the last `run` held their quantile, (clipped,); a miss costs further passes."""
        ...


class DirectionBackend(Backend, Protocol):
    """A backend that can also write directions out, as all do that know other kinds than `ADAM`."""

    def inverse_norms(self, plan: KernelPlan) -> Tensor:
        """Return one over the Frobenius norm of each matrix in `outputs`, (matrices,), after all were written.

        It is 1 where the norm is 0, NaN where an entry is not finite.
        """
        ...


class FusedStep(Protocol):
    """The fused step of one param group, kept from step to step; nothing of it is saved in a checkpoint."""

    taken: list[int]  # the positions of the parameters of the last `bind` that the kernel steps
    rest: list[Tensor]  # those that it does not support

    @property
    def takes_half(self) -> bool:
        """Whether the kernel reads half gradients, and writes the half parameters whose fp32 copies are its weights."""
        ...

    @property
    def clips_gradients(self) -> bool:
        """Whether the kernel takes the gradients as they are, and clips them itself."""
        ...

    def serves(self, params: list[Tensor], weights: list[Tensor], states: list[ParameterState], group: Group) -> bool:
        """Tell whether nothing that the last `bind` rests on has changed: shapes, devices and buffers among it."""
        ...

    def bind(
        self, params: list[Tensor], weights: list[Tensor], states: list[ParameterState], group: Group
    ) -> list[int]:
        """Make sure that the plan is that of these parameters; returns the positions of those it steps."""
        ...

    def step_(self, gradients: list[Tensor], group: Group) -> None:
        """Step the bound parameters with these gradients, one for each."""
        ...
