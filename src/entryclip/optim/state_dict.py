"""State dicts: torch's own rules for saving and loading, and what these would spoil.

Torch casts every floating state to its parameter's dtype and does not look at shapes; thresholds, fp32 state and the
step counter must keep their precision, and a buffer of another shape must never reach a kernel.
"""

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .capture import counter_device
from .groups import HALF, STAGES, Group, ParameterState

if TYPE_CHECKING:
    from .staged import Staged

StateDict = dict[str, Any]
_PREFIXES = tuple(f"{stage}_" for stage in STAGES)
_OF_THE_MACHINE = (
    "fused",
    "capturable",
    "fp32_state",
)  # matters of the machine and of the parameters, not of the saved run


def as_text(saved: StateDict) -> StateDict:
    """Write the methods and clips of a state dict's groups as text, in place, and return it."""
    for group in saved["param_groups"]:
        group["method"] = str(group["method"])
        objects = [key for key in (*STAGES, "norm") if group.get(key) is not None]
        group.update({key: repr(group[key]) for key in objects})
    return saved


def load_state_dict(optimizer: "Staged", saved: StateDict, load: Callable[[StateDict], None]) -> None:
    """Load `saved` by torch's own `load`, checked and merged with the live groups before, repaired after.

    Both are hooks around the user's own load hooks, so that they see what these made of the state dict.
    """
    final: list[StateDict] = []

    def before(_: torch.optim.Optimizer, given: StateDict) -> StateDict:
        given = {**given, "param_groups": _merged_groups(optimizer.param_groups, given["param_groups"])}
        _check_saved_shapes(optimizer, given)
        final.append(given)
        return given

    def after(_: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            group["steps"] = torch.tensor(int(group["steps"]))
        _repair_state(optimizer, final[0])

    handles = [
        optimizer.register_load_state_dict_pre_hook(before),
        optimizer.register_load_state_dict_post_hook(after, prepend=True),
    ]
    try:
        load(saved)
    finally:
        for handle in handles:
            handle.remove()


def _merged_groups(live: list[Group], saved: list[Group]) -> list[Group]:
    """Return the saved options over the live ones, which a checkpoint of torch.optim lacks.

    Methods and clips stay the live ones: a state dict holds only their text.
    """
    groups = [
        {**{k: v for k, v in mine.items() if k not in ("params", "param_names")}, **theirs}
        for mine, theirs in zip(live, saved, strict=False)
    ]
    for merged, mine in zip(groups, live, strict=False):
        if str(merged["method"]) != str(mine["method"]):
            raise ValueError(
                f"saved with method {merged['method']}, this group follows {mine['method']}: build it alike"
            )
        for key in (*STAGES, "norm"):
            if isinstance(merged.get(key), str) and merged[key] != repr(mine.get(key)):
                warnings.warn(f"saved with {key}={merged[key]}, going on with {mine.get(key)}", stacklevel=7)
        merged.pop("norm", None)  # a checkpoint may have it where the live group does not
        merged.update({key: mine[key] for key in ("method", *STAGES, "norm", *_OF_THE_MACHINE) if key in mine})
    return groups if len(live) == len(saved) else saved  # torch says what is wrong with another number of groups


def _pairs(optimizer: "Staged", saved: StateDict) -> list[tuple[Tensor, Group, ParameterState]]:
    """Return each live parameter with its group and its saved state, by their order, as torch pairs them."""
    live = [(p, group) for group in optimizer.param_groups for p in group["params"]]
    places = [place for group in saved["param_groups"] for place in group["params"]]
    found = zip(places, live, strict=False)
    return [(p, group, saved["state"].get(place, {})) for place, (p, group) in found]


def _check_saved_shapes(optimizer: "Staged", saved: StateDict) -> None:
    """Raise where a saved buffer does not fit its parameter, before anything is loaded."""
    for p, group, state in _pairs(optimizer, saved):
        group["method"].check_shapes(p, state, group)


def _repair_state(optimizer: "Staged", saved: StateDict) -> None:
    """Give back the precision that torch's cast took, and drop the memory of rules that are no longer used."""
    for p, group, state in _pairs(optimizer, saved):
        exact = group["method"].exact
        for key, value in state.items():
            stage = key.partition("_")[0] if key.startswith(_PREFIXES) else None
            if stage is not None and (group[stage] is None or not group[stage].has_memory):
                optimizer.state[p].pop(key, None)
            elif key == "step":
                home = counter_device(group, p)
                optimizer.state[p][key] = torch.tensor(float(value), dtype=torch.float32, device=home)
            elif isinstance(value, Tensor) and (stage is not None or group["fp32_state"] or key in exact):
                value = value.detach().clone().to(p.device)
                optimizer.state[p][key] = value.float() if value.dtype in HALF else value
