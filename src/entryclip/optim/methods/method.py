"""What an optimization method is: its options, its buffers, and how a gradient becomes a direction.

A param group follows one `Method` object; `Staged` runs the loop around it. A new method is a subclass of `Method`
whose object is handed to a group (`{"params": ..., "method": MyMethod()}`) or to a subclass of `Staged`. `register`
gives it a name that groups can use instead.
"""

import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from ..batches import batches
from ..direction import Direction
from ..foreach import multiply_all_
from ..groups import Group, ParameterState, name_in

if TYPE_CHECKING:
    from ..kernels.plan import FusedStep

_TORCH_FLAGS = ("foreach", "differentiable")  # taken for torch's sake, never kept in a group


class Method(ABC):
    """The mathematics of one optimization method, without any state of its own.

    The state of a parameter (its buffers) and the options of its group are arguments of every call. All tensors of one
    call have the parameter's shape; `w` is the parameter, or its fp32 copy with `fp32_state`.
    """

    name: ClassVar[str]
    buffers: ClassVar[tuple[str, ...]] = ()  # the keys of the state whose tensors have the parameter's shape
    exact: ClassVar[tuple[str, ...]] = ()  # other keys of the state whose precision a checkpoint keeps
    has_sign: ClassVar[bool] = False  # whether a matrix sign follows the direction, so that the `pre` stage exists
    kernel: "ClassVar[type[FusedStep] | None]" = None  # does the whole step of a group with `fused=True`

    @abstractmethod
    def options(self) -> Group:
        """Return the method's options with their defaults, `lr` and `weight_decay` among them."""

    def check(self, group: Group) -> None:  # noqa: B027 - most have none
        """Raise where the method's own options make no sense."""

    def follow_momentum_(self, group: Group) -> None:  # noqa: B027 - where `momentum` is an option there is nothing to do
        """Take over the momentum that a scheduler (`cycle_momentum`) wrote into a group whose option is another one."""

    def make_buffers_(self, w: Tensor, state: ParameterState, group: Group) -> None:  # noqa: B027 - most have none
        """Make the buffers that `state` lacks."""

    def check_shapes(self, p: Tensor, state: ParameterState, group: Group) -> None:
        """Raise where a buffer of a parameter does not have the parameter's shape: it must never reach a kernel."""
        shape = p.shape
        for key in (*self.buffers, "master"):
            buffer = state.get(key)
            if buffer is not None and buffer.shape != shape:
                raise ValueError(
                    f"parameter {name_in(group, p)} has shape {tuple(p.shape)}, but its state {key} has "
                    f"{tuple(buffer.shape)}: the parameter was replaced or the state is another model's; make a new "
                    "optimizer, or load the state that belongs to it"
                )

    def follow_device_(self, p: Tensor, state: ParameterState) -> None:
        """Move the state of a parameter that was moved to another device after a step, and warn about it."""
        buffer = state.get(self.buffers[0]) if self.buffers else None
        if buffer is None or buffer.device == p.device:
            return
        warnings.warn(
            f"parameters were moved from {buffer.device} to {p.device} after a step, and their optimizer state with "
            "them; to save the copy, move the model before the optimizer is made",
            stacklevel=5,
        )
        for key, value in state.items():
            if isinstance(value, Tensor) and key != "step":  # `place_counter_` knows where that belongs
                state[key] = value.to(p.device)

    @abstractmethod
    def update_(self, g: Tensor, w: Tensor, state: ParameterState, group: Group) -> None:
        """Take the gradient into the buffers of `state`, which are made on first use."""

    @abstractmethod
    def direction(self, g: Tensor | None, w: Tensor, state: ParameterState, group: Group) -> Direction:
        """Return the direction that the present buffers give; nothing is changed.

        The gradient is needed only where `can_direct` says so.
        """

    def can_direct(self, g: Tensor | None, state: ParameterState, group: Group) -> bool:
        """Tell whether `direction` can be called: the buffers exist, and the gradient where it is read."""
        return "momentum_buffer" in state and (g is not None or not group["nesterov"])

    # The same for the parameters of a batch. A method may override these with functions over lists of tensors that give
    # the same bits; a subclass that changes one of the functions above, and not this one, has the loop over it again.

    def update_all_(self, gs: list[Tensor], ws: list[Tensor], states: list[ParameterState], group: Group) -> None:
        """Do `update_` for each parameter."""
        for g, w, state in zip(gs, ws, states, strict=True):
            self.update_(g, w, state, group)

    def directions(
        self, gs: list[Tensor], ws: list[Tensor], states: list[ParameterState], group: Group
    ) -> list[Direction]:
        """Return the `direction` of each parameter."""
        return [self.direction(g, w, state, group) for g, w, state in zip(gs, ws, states, strict=True)]

    def decay_all_(self, ws: list[Tensor], group: Group) -> None:
        """Do `decay_` for each parameter."""
        if self.decays(group):
            multiply_all_(ws, 1 - group["lr"] * group["weight_decay"], capturable=group["capturable"])

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for single, together in _TOGETHER.items():
            if single in vars(cls) and together not in vars(cls):
                setattr(cls, together, _loop_over(single))

    def sign(self, m: Tensor, group: Group) -> Tensor:
        """Return the matrix sign of each matrix of `m`, of shape (..., rows, columns), for a method that has one."""
        raise NotImplementedError(f"{self} has no matrix sign")

    def update_after_sign_(self, o: Tensor, state: ParameterState, group: Group) -> None:  # noqa: B027 - most have none
        """Take the matrix sign `o` into buffers that follow it; by default there are none."""

    def from_sign(self, o: Tensor, state: ParameterState, group: Group) -> Tensor:
        """Return the update that the matrix sign `o` gives; by default `o` itself. Nothing is changed."""
        return o

    def decays(self, group: Group) -> bool:
        """Tell whether the weights decay apart from the direction (decoupled weight decay)."""
        return bool(group["weight_decay"] != 0)

    def decay_(self, w: Tensor, group: Group) -> None:
        """Apply decoupled weight decay, which is never clipped."""
        if self.decays(group):
            w.mul_(1 - group["lr"] * group["weight_decay"])

    def batches(self, params: list[Tensor], group: Group) -> Iterator[list[Tensor]]:
        """Yield the parameters in the batches that are stepped together, each of a bounded number of entries."""
        yield from batches(params)

    def __str__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        """Compare as the same kind of method, or with its name: `group["method"] == "muon"`."""
        return other == self.name if isinstance(other, str) else type(other) is type(self)

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return repr(self.name)

    def __deepcopy__(self, memo: object) -> "Method":
        return self  # an object without state: copies of an optimizer share it


_TOGETHER = {"update_": "update_all_", "direction": "directions", "decay_": "decay_all_"}


def _loop_over(single: str) -> Callable[..., list[Any]]:
    """Return the function that calls a method's function `single` for each parameter of a batch."""

    def each(self: Method, *arguments: Any) -> list[Any]:
        *lists, group = arguments
        return [getattr(self, single)(*one, group) for one in zip(*lists, strict=True)]

    return each


METHODS: dict[str, Method] = {}  # by the name that a param group may use


def register(method: Method) -> Method:
    """Make `method` known by its name; a second method of the same name is refused."""
    known = METHODS.setdefault(method.name, method)
    if type(known) is not type(method):
        raise ValueError(
            f"there is a method named {method.name!r} already, {type(known).__name__}: choose another name"
        )
    return known


def find_method(given: Any) -> Method:
    """Return the method of a group: the object itself, or the registered one of that name."""
    if isinstance(given, Method):
        return given
    if not isinstance(given, str) or given not in METHODS:
        raise ValueError(f"method must be one of {', '.join(sorted(METHODS))} or a Method object, got {given!r}")
    return METHODS[given]


def defaults_of(constructor: Callable[..., Any]) -> Group:
    """Return the options that an optimizer's constructor takes, with their defaults.

    Its signature is the one place where they are written.
    """
    found = inspect.signature(constructor).parameters.values()
    return {
        each.name: each.default for each in found if each.default is not each.empty and each.name not in _TORCH_FLAGS
    }


def chosen(options: Group, given: Mapping[str, Any]) -> Group:
    """Return the values of `options` that a constructor was given, out of its `locals()`."""
    return {name: given[name] for name in options}
