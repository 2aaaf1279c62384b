"""The clipped matrices of a fused step whose thresholds follow the scales of rows and columns: the clip is `Auto`'s."""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from ...auto_threshold import Auto
from ...thresholds import State
from .plan import Backend, KernelPlan


@dataclass(frozen=True)
class ScaledMatrices:
    """A plan's clipped matrices, their clip, and what its rule remembers of them.

    memory        sketches (matrices, 256) and levels (matrices, 1, 1), looks (parameters,); a step writes to it
    shapes        rows and columns of each matrix, (m, n)
    transposed    whether a matrix lies in memory as (n, m)
    of_gradient   whether it acts on the gradients, and not on the directions
    """

    rule: Auto
    operator: Any
    memory: State
    shapes: list[tuple[int, int]]
    transposed: bool
    of_gradient: bool


class ScaledBackend(Protocol):
    """Something that carries out the step of a plan's clipped matrices, beside the backend that does the others'."""

    stages: ClassVar[frozenset[str]]  # at which it can clip

    def __init__(self, plan: KernelPlan, backend: Backend): ...

    def step_(self, plan: KernelPlan) -> None:
        """Take the gradients in and move the weights, each matrix clipped as its entries call for.

        `backend.run` was called with the same plan before.
        """
        ...
