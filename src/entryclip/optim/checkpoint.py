"""Loading a checkpoint: torch's own rules, and what they would spoil."""

import warnings
from typing import TYPE_CHECKING, Any

from torch import Tensor

from .groups import HALF, STAGES, Group

if TYPE_CHECKING:
    from .staged import Staged


def merged_groups(live: list[Group], saved: list[Group]) -> list[Group]:
    """The saved options over the live ones, which a checkpoint of torch.optim lacks; the clips stay the live ones."""
    groups = [
        {**{k: v for k, v in mine.items() if k not in ("params", "param_names")}, **theirs}
        for mine, theirs in zip(live, saved, strict=False)
    ]
    for merged, mine in zip(groups, live, strict=False):
        for stage in STAGES:
            if isinstance(merged[stage], str) and merged[stage] != repr(mine[stage]):
                warnings.warn(f"saved with {stage}={merged[stage]}, going on with {mine[stage]}", stacklevel=3)
            merged[stage] = mine[stage]
        for option in ("fused", "fp32_state"):  # matters of the machine and of the parameters, not of the run
            merged[option] = mine[option]
    return groups or saved


def restore_dtypes(optimizer: "Staged", saved: dict[str, Any]) -> None:
    """torch has cast every floating state to its parameter's dtype; thresholds and fp32 state must keep theirs."""
    params = [(p, group["fp32_state"]) for group in optimizer.param_groups for p in group["params"]]
    places = [place for group in saved["param_groups"] for place in group["params"]]
    for place, (p, fp32_state) in zip(places, params, strict=True):
        for key, value in saved["state"].get(place, {}).items():
            of_clip = key.startswith(tuple(f"{stage}_" for stage in STAGES))
            if isinstance(value, Tensor) and (of_clip or (fp32_state and key != "step")):
                value = value.detach().clone().to(p.device)
                optimizer.state[p][key] = value.float() if value.dtype in HALF else value
