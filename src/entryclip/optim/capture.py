"""CUDA-graph capture of an optimizer's step: what it needs, and errors where a replay would silently go wrong.

A graph replays launches on fixed addresses. Nothing that the host computes happens again: a number that the host read
or made during capture keeps its value for ever, and a tensor that the step made anew is not the one the next replay
reads. So a capturable step keeps its counters on the device, reads nothing back, and updates its state in place.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..arrays import on_device
from ..clip import Clip
from .groups import Group, ParameterState, named

if TYPE_CHECKING:
    from .staged import Staged

_WARM_UP = "take a step or two outside of the graph, with the same parameters and options, before capturing one"


def is_capturing() -> bool:
    """Tell whether launches are being captured in a CUDA graph now. The compiler makes its own graphs: False there."""
    if torch.compiler.is_compiling() or not torch.cuda.is_available():
        return False
    return torch.cuda.is_current_stream_capturing()


@contextlib.contextmanager
def checked_capture(optimizer: "Staged") -> Iterator[None]:
    """Refuse a capture whose replays would be wrong: before the step by its settings, after it by what it replaced.

    Nothing runs during a capture, so that taking back the replaced state undoes the step.
    """
    _check_settings(optimizer.param_groups)
    _check_counters(optimizer)
    before = {p: dict(state) for p, state in optimizer.state.items()}
    yield
    replaced = [
        f"{', '.join(keys)} of parameter {name}"
        for number, group in enumerate(optimizer.param_groups)
        for name, p in named(group, number)
        if (keys := _replaced(optimizer.state.get(p, {}), before.get(p, {})))
    ]
    if replaced:
        for p in optimizer.state:
            optimizer.state[p] = before.get(p, {})
        raise RuntimeError(f"the captured step made {replaced[0]} anew, which every replay would do again: {_WARM_UP}")


def _replaced(state: ParameterState, before: ParameterState) -> list[str]:
    """Return the keys of a parameter's state that hold another object than before."""
    return [key for key, value in state.items() if value is not before.get(key)]


def _check_settings(groups: list[Group]) -> None:
    """Raise where a group's settings need the host in every step, or its parameters are not on a device."""
    for number, group in enumerate(groups):
        if not group["capturable"]:
            raise RuntimeError(
                f"param group {number} has capturable=False, so that a CUDA graph would replay this step's bias "
                "correction for ever: make the optimizer with capturable=True, or capture the forward and backward "
                "pass only"
            )
        if group["nonfinite"] != "propagate":
            raise RuntimeError(
                f"nonfinite={group['nonfinite']!r} reads the gradients on the host, which a CUDA graph cannot: set "
                'nonfinite="propagate", or capture the forward and backward pass only'
            )
        if isinstance(group["lr"], Tensor) and not on_device(group["lr"]):
            raise RuntimeError(
                "lr is a tensor on the CPU, whose present value every replay would use: make it on the parameters' "
                "device, torch.tensor(lr, device=...), or pass a number if it is not to change"
            )
        for name, p in named(group, number):
            if not on_device(p):
                raise RuntimeError(
                    f"parameter {name} is on the CPU, where a CUDA graph replays nothing: move it to the device, or "
                    "step it by another optimizer outside of the graph"
                )


def _check_counters(optimizer: "Staged") -> None:
    """Raise where a counter is still on the host, as before the first capturable step."""
    for number, group in enumerate(optimizer.param_groups):
        for name, p in named(group, number):
            counters = (group["steps"], optimizer.state.get(p, {}).get("step", group["steps"]))
            if not all(map(on_device, counters)):
                raise RuntimeError(f"the step counter of parameter {name} is on the host: {_WARM_UP}")


def refuse_captured_memory(clip: Clip) -> None:
    """Raise while a graph is captured, for the users of a clip that keep a new memory at each call."""
    if clip.has_memory and is_capturing():
        raise RuntimeError(
            f"{clip} has memory, which a CUDA graph would not carry on from here: capture one of entryclip's "
            "optimizers with grad=clip and capturable=True instead, or use a rule without memory"
        )


def counter_device(group: Group, p: Tensor) -> torch.device:
    """Return where the step counter of a parameter lives: on its device with `capturable`, else on the host."""
    return p.device if group["capturable"] else torch.device("cpu")


def count_step_(group: Group) -> None:
    """Add one to the number of steps that a group was asked for, a tensor beside the counters of its parameters.

    A number would make torch.compile begin anew at every step.
    """
    home = counter_device(group, group["params"][0]) if group["params"] else group["steps"].device
    if group["steps"].device != home:
        group["steps"] = group["steps"].to(home)
    group["steps"].add_(1)


def place_counter_(state: ParameterState, w: Tensor, group: Group) -> None:
    """Make the step counter of a parameter, or move it to where it belongs; never in the default dtype.

    bf16 cannot count past 256.
    """
    step = state.get("step")
    if isinstance(step, Tensor) and (step.device == w.device if group["capturable"] else step.is_cpu):
        return
    home = counter_device(group, w)
    if isinstance(step, Tensor):
        state["step"] = step.to(home)
    else:  # older torch counted in a plain number
        state["step"] = torch.tensor(float(step or 0), dtype=torch.float32, device=home)


def count_steps_(counters: list[Tensor], group: Group) -> None:
    """Add one to the step counters of parameters.

    On a host torch adds a number to one tensor after the other, and makes a tensor of it each time.
    """
    on_host = not group["capturable"] and not torch.compiler.is_compiling()
    torch._foreach_add_(counters, torch.tensor(1.0, device="cpu") if on_host else 1)


def keep_memory_(state: ParameterState, stage: str, memory: Mapping[str, Tensor], *, in_place: bool) -> None:
    """Keep the memory of a stage's rule in the state of a parameter: in the tensors that are there, or as it is."""
    for key, value in memory.items():
        kept = state.get(f"{stage}_{key}")
        if in_place and kept is not None and kept.shape == value.shape and kept.dtype == value.dtype:
            kept.copy_(value)
        else:
            state[f"{stage}_{key}"] = value
