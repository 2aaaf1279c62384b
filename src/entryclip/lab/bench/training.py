"""Whole training steps of the small language model: what exact smooth shrinkage costs, and what makes a step fast."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..engine.allocator import keep_freed_memory
from ..lm import GPT, Config
from ..lm.train.training_methods import make_optimizer
from .timing import Result, gain, measured, milliseconds, side_by_side

SEQUENCES, LENGTH = 16, 256  # as in the pretraining study


def run() -> Iterator[Result]:
    keep_freed_memory()  # as the commands that train do
    times = side_by_side({"ours": stepper(ours), "torch": stepper(torchs)}, rounds=15, warm_up=3)
    ratio = times["ours"] / times["torch"]
    detail = f"{milliseconds(times['ours'])} against {milliseconds(times['torch'])}"
    name = "training step, AdamW(fused=True), smooth(.995) / torch AdamW(fused=True)"
    yield Result(name, ratio, 1.03, False, detail)
    yield from gradient_of_the_model()
    yield from whole_steps()


def whole_steps() -> Iterator[Result]:
    """Measure a step of a study, forward to update, beside that of the layers as they are written."""
    candidates = {"plain": stepper(ours, chunked=False), "fp32": stepper(ours)}
    if multiplies_in_bf16():
        candidates["bf16"] = stepper(ours, bf16=True)
    times = side_by_side(candidates, rounds=15, warm_up=2)
    name = "training step of a study: layers a few rows at a time / plain ones"
    yield measured(name, times["fp32"], times["plain"])  # what they gain depends on the caches
    if "bf16" in times:
        yield gain("training step of a study: the same in bf16 over plain layers", times["bf16"], times["plain"], 1.4)


def gradient_of_the_model() -> Iterator[Result]:
    """Measure loss and gradients with the dense attention mask, without it, and with products in bf16."""
    candidates = {"dense": differentiate(flex=False), "window": differentiate()}
    if multiplies_in_bf16():
        candidates["bf16"] = differentiate(bf16=True)
    times = side_by_side(candidates, rounds=15, warm_up=2)
    yield gain("gradient of the small model: window over dense mask", times["window"], times["dense"], 1.0)
    if "bf16" in times:
        yield gain("gradient of the small model: bf16 over fp32", times["bf16"], times["window"], 1.2)


def multiplies_in_bf16() -> bool:
    """Tell whether this CPU has instructions for products in bf16; others are much slower in it than in fp32."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def differentiate(*, flex: bool | None = None, bf16: bool = False) -> Callable[[], None]:
    """Return a function that computes loss and gradients of a small model."""
    model = GPT(Config.small(), torch.Generator().manual_seed(0), flex=flex)
    tokens = draw_tokens()

    def pass_both_ways() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        model.zero_grad()

    return pass_both_ways


def ours(model: GPT) -> torch.optim.Optimizer:
    return make_optimizer(model, "post-smooth", fused=True)


def torchs(model: GPT) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.99), weight_decay=0.1, fused=True)


def stepper(make: Callable[[GPT], Any], *, chunked: bool = True, bf16: bool = False) -> Callable[[], None]:
    """Return a function that takes a training step: forward, backward and update, on the same tokens for all.

    chunked     whether layers go through a few rows at a time and attention leaves out keys out of reach
    """
    model = GPT(Config.small(), torch.Generator().manual_seed(0), flex=None if chunked else False)
    if not chunked:
        for layer in model.modules():
            if isinstance(layer, torch.nn.Linear):
                layer.register_forward_hook(lambda *_: None)  # a layer with a hook is called as it is
    optimizer = make(model)
    tokens = draw_tokens()

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def draw_tokens() -> torch.Tensor:
    """Draw a batch, (SEQUENCES, LENGTH + 1)."""
    return torch.randint(0, 4095, (SEQUENCES, LENGTH + 1), generator=torch.Generator().manual_seed(1))
