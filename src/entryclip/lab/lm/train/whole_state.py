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


def gather(trainer: Trainer) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the weights and the optimizer's state by parameter names; all processes must call it."""
    weights: Any = get_model_state_dict(trainer.model, options=_WHOLE)
    optimizer: Any = get_optimizer_state_dict(trainer.model, trainer.optimizer, options=_WHOLE)
    return weights, optimizer


def restore(trainer: Trainer, saved: Checkpoint) -> None:
    """Load weights and optimizer state into a trainer, also from a run on another number of processes.

    The options of the optimizer's groups stay the trainer's own: they follow from the settings.
    """
    try:
        set_model_state_dict(trainer.model, {**saved.weights}, options=_WHOLE)
        own: Any = get_optimizer_state_dict(trainer.model, trainer.optimizer)
        _check_moments(own["state"], saved)
        groups = [{**group, "steps": saved.step} for group in own["param_groups"]]
        state = {"state": saved.optimizer["state"], "param_groups": groups}
        set_optimizer_state_dict(trainer.model, trainer.optimizer, state, options=_WHOLE)
    except BadFile:
        raise
    except (RuntimeError, KeyError, ValueError) as error:
        raise BadFile(f"{saved.place} is of another model: {str(error).splitlines()[0]}") from error


def _check_moments(own: dict[str, Any], saved: Checkpoint) -> None:
    """Refuse a state without the moments of a parameter, or with ones of another shape: they would be lost silently."""
    state, remedy = saved.optimizer["state"], f"remove {saved.place}, to continue from the checkpoint before it"
    for name, wanted in own.items():
        found = state.get(name)
        for key, value in wanted.items():
            shape = getattr(value, "shape", None)
            if not isinstance(found, dict) or key not in found or getattr(found[key], "shape", None) != shape:
                expected = "a number" if shape is None else f"of shape {tuple(shape)}"
                raise BadFile(f"{saved.place / checkpoint.STATE} lacks {key} of {name}, {expected}: {remedy}")
