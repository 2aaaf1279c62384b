"""What a training method costs: a training step of the small language model with it, over one without a clip.

The lines are measurements without a limit: the methods of others are here beside ours. docs/does-it-help.md shows them
next to what each method does to the loss.
"""

from collections.abc import Iterator
from functools import partial

import torch

from ..engine.allocator import keep_freed_memory
from ..lm import GPT
from ..lm.train.training_methods import find, make_optimizer
from ..paper.lm_methods import BASELINES
from .timing import Result, measured, side_by_side
from .training import stepper

ROUNDS = 15


def run() -> Iterator[Result]:
    """Measure the methods of AdamW in turn, then those of Muon."""
    keep_freed_memory()  # as the commands that train do
    for base in ("adamw", "muon"):
        names = [base, *(name for name in BASELINES if find(name).optimizer == base)]
        times = side_by_side({name: stepper(partial(fused, name)) for name in names}, rounds=ROUNDS, warm_up=2)
        for name in names[1:]:
            yield measured(cost_name(name), times[name], times[base])


def cost_name(method: str) -> str:
    """Return the name of a method's line.

    >>> cost_name("pre-smooth")
    'training step, pre-smooth / muon'
    """
    return f"training step, {method} / {find(method).optimizer}"


def fused(method: str, model: GPT) -> torch.optim.Optimizer:
    """Make the optimizer of a training method as a training run on a CPU has it."""
    return make_optimizer(model, method, fused=True)
