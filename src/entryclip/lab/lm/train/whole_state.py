"""Weights and optimizer state of a trainer as whole tensors, on however many processes they are sharded.

Imported where a checkpoint is written or read: torch's part for it takes seconds to load, and most runs have none.
"""

from typing import Any

from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from ...engine.schema import BadFile
from . import checkpoint
from .checkpoint import Checkpoint
from .trainer import Trainer

_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)
_MISMATCH = (RuntimeError, KeyError, ValueError, TypeError, AttributeError)  # torch's, for a state of other parameters
_MOMENTS = frozenset({"step", "exp_avg", "exp_avg_sq", "momentum_buffer"})  # what methods of one optimizer share


def gather(trainer: Trainer) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the weights and the optimizer's state by parameter names; all processes must call it."""
    weights: Any = get_model_state_dict(trainer.model, options=_WHOLE)
    optimizer: Any = get_optimizer_state_dict(trainer.model, trainer.optimizer, options=_WHOLE)
    return weights, optimizer


def restore(trainer: Trainer, saved: Checkpoint) -> None:
    """Load weights and optimizer state into a trainer, also from a run on another number of processes.

    The options of the optimizer's groups stay the trainer's own: they follow from the settings.
    """
    restore_weights(trainer, saved)
    try:
        own: Any = get_optimizer_state_dict(trainer.model, trainer.optimizer)
        is_branch = saved.record["settings"]["method"] != trainer.settings.method
        _check_moments(own["state"], saved, only=_MOMENTS if is_branch else None)
        groups = [{**group, "steps": saved.step} for group in own["param_groups"]]
        if not is_branch and len(groups) == len(saved.optimizer["param_groups"]):  # a branch may group them otherwise
            for group, theirs in zip(groups, saved.optimizer["param_groups"], strict=True):
                group |= _norm_memory(group, theirs)
        state = {"state": saved.optimizer["state"], "param_groups": groups}
        set_optimizer_state_dict(trainer.model, trainer.optimizer, state, options=_WHOLE)
    except BadFile:
        raise
    except _MISMATCH as error:
        raise _another_model(saved, error) from error


def restore_weights(trainer: Trainer, saved: Checkpoint) -> None:
    """Load the weights alone into a trainer, also from a run on another number of processes."""
    try:
        set_model_state_dict(trainer.model, {**saved.weights}, options=_WHOLE)
    except _MISMATCH as error:
        raise _another_model(saved, error) from error


def _another_model(saved: Checkpoint, error: Exception) -> BadFile:
    return BadFile(f"{saved.place} is of another model: {str(error).splitlines()[0]}")


def _norm_memory(group: dict[str, Any], saved: dict[str, Any]) -> dict[str, Any]:
    """Return what the saved group's rule for the norm of all gradients remembers, where this group has the same."""
    if group.get("norm") is None or group["norm"] != saved.get("norm"):
        return {}
    return {key: value for key, value in saved.items() if key.startswith("norm_")}


def _check_moments(own: dict[str, Any], saved: Checkpoint, only: frozenset[str] | None) -> None:
    """Refuse a state without the moments of a parameter, or with ones of another shape: they would be lost silently.

    only    the keys to look at (default: all). What else another method keeps begins anew in a branch
    """
    state, remedy = saved.optimizer["state"], f"remove {saved.place}, to continue from the checkpoint before it"
    for name, wanted in own.items():
        found = state.get(name)
        for key, value in wanted.items():
            if only is not None and key not in only:
                continue
            shape = getattr(value, "shape", None)
            if not isinstance(found, dict) or key not in found or getattr(found[key], "shape", None) != shape:
                expected = "a number" if shape is None else f"of shape {tuple(shape)}"
                raise BadFile(f"{saved.place / checkpoint.STATE} lacks {key} of {name}, {expected}: {remedy}")
