"""Whole training steps of the small language model: what exact smooth shrinkage costs where it is used."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..lm import GPT, Config
from ..lm.train.training_methods import make_optimizer
from .timing import Result, milliseconds, side_by_side

SEQUENCES, LENGTH = 16, 256  # as in the pretraining study


def run() -> Iterator[Result]:
    times = side_by_side({"ours": stepper(ours), "torch": stepper(torchs)}, rounds=15, warm_up=3)
    ratio = times["ours"] / times["torch"]
    detail = f"{milliseconds(times['ours'])} against {milliseconds(times['torch'])}"
    name = "training step, AdamW(fused=True), smooth(.995) / torch AdamW(fused=True)"
    yield Result(name, ratio, 1.03, False, detail)


def ours(model: GPT) -> torch.optim.Optimizer:
    return make_optimizer(model, "post-smooth", fused=True)


def torchs(model: GPT) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.99), weight_decay=0.1, fused=True)


def stepper(make: Callable[[GPT], Any]) -> Callable[[], None]:
    """Forward, backward and step, on the same tokens for both."""
    model = GPT(Config.small(), torch.Generator().manual_seed(0))
    optimizer = make(model)
    tokens = torch.randint(0, 4095, (SEQUENCES, LENGTH + 1), generator=torch.Generator().manual_seed(1))

    def step() -> None:
        model(tokens[:, :-1], tokens[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
