"""Train a model and stop at given steps with gradients of a whole batch and of single samples."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ....diagnostics.matrices import NamedMatrix, select
from ...lm.train.schedule import lr_factor
from ...lm.train.training_methods import make_optimizer

Batch = tuple[Tensor, Tensor]  # inputs and targets, (samples, ...)


class Task(NamedTuple):
    """A model, its loss and its data.

    loss      the mean loss of a batch, given the share of the run that is over, 0 to 1
    batches   an endless or sufficient stream of batches, of the size that a step takes
    """

    model: nn.Module
    loss: Callable[[Batch, float], Tensor]
    batches: Iterator[Batch]


class Rates(NamedTuple):
    """Learning rates of the hidden matrices and of all other parameters; both fall linearly to 0."""

    hidden: float
    other: float


class Stage(NamedTuple):
    """A model in training: its gradients after `step` steps, on batches that take no step.

    loss       of the batch whose gradient this is
    gradients  for each matrix that of a batch, (m, n), and those of single samples of another batch, (samples, m, n)
    """

    step: int
    loss: float
    gradients: Iterator[tuple[NamedMatrix, Tensor, Tensor]]


def stages(task: Task, optimizer: str, rates: Rates, *, steps: Sequence[int], samples: int) -> Iterator[Stage]:
    """Train for `steps[-1]` steps with "adamw" or "muon", without any clip, and yield a stage at each of `steps`.

    A stage's gradients are to be read before the next stage is asked for.
    """
    options = {"lr": rates.hidden, "other_lr": rates.other, "weight_decay": 0.1, "other_decay": 0.0}
    stepper = make_optimizer(task.model, optimizer, **options)  # type: ignore[arg-type]
    highest = [float(group["lr"]) for group in stepper.param_groups]
    for done in range(steps[-1]):
        for group, rate in zip(stepper.param_groups, highest, strict=True):
            group["lr"] = rate * lr_factor("linear", done, steps[-1])
        task.loss(next(task.batches), done / steps[-1]).backward()  # type: ignore[no-untyped-call]
        stepper.step()
        stepper.zero_grad()
        if done + 1 in steps:
            yield _stage(task, done + 1, (done + 1) / steps[-1], samples)


def _stage(task: Task, step: int, progress: float, samples: int) -> Stage:
    """Compute the gradients of the next two batches: the mean of one, and single samples of the other."""
    matrices = select(task.model, "*").matrices
    parameters = {name: task.model.get_parameter(name) for name in {matrix.parameter for matrix in matrices}}

    def gradients(batch: Batch) -> tuple[float, dict[str, Tensor]]:
        loss = task.loss(batch, progress)
        return float(loss.detach()), dict(
            zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True)
        )

    loss, mean = gradients(next(task.batches))
    inputs, targets = next(task.batches)
    singles = [gradients((inputs[i : i + 1], targets[i : i + 1]))[1] for i in range(samples)]

    def each() -> Iterator[tuple[NamedMatrix, Tensor, Tensor]]:
        for matrix in matrices:
            of_samples = torch.stack([matrix.of(single[matrix.parameter]) for single in singles])
            yield matrix, matrix.of(mean[matrix.parameter]), of_samples

    return Stage(step, loss, each())
