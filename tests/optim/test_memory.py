"""What a step takes beyond the state: one parameter at a time, as seen by torch's profiler and by tracemalloc."""

import pytest
import torch
from memory import peak

import entryclip as ec
from entryclip import optim

SHAPE = (1024, 2048)
SIZE = 4 * 1024 * 2048
SCRATCH = 4 * (1 << 18) * 2  # what clips work in, whatever the size of the parameter


def stepper(make):
    params = [torch.nn.Parameter(torch.ones(SHAPE)) for _ in range(3)]
    optimizer = make(params)
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        for p in params:
            p.grad = torch.randn(SHAPE, generator=generator)
        optimizer.step()
    state = sum(t.numel() * t.element_size() for s in optimizer.state.values() for t in s.values())
    return optimizer.step, state


@pytest.mark.parametrize(
    ("make", "temporaries"),
    [
        (lambda p: optim.AdamW(p, post=None), 1),
        (lambda p: optim.AdamW(p), 1),
        (lambda p: optim.AdamW(p, post=ec.Clip(ec.hard_clip, ec.Running(ec.Quantile(0.9), beta=0.9))), 1),
        (lambda p: optim.AdamW(p, fused=True), 0),
    ],
    ids=["no clip", "smooth", "running", "fused"],
)
def test_one_parameter_at_a_time(make, temporaries):
    step, state = stepper(make)
    by_torch, by_numpy = peak(step)
    assert by_torch <= temporaries * SIZE + SCRATCH
    assert by_numpy <= SIZE + SCRATCH  # a copy of |u| for the selection, of 2^22 entries at most
    assert state <= 3 * 2 * SIZE + 1000  # two moments each, as torch's


def test_large_parameters_are_ranked_without_a_copy():
    x = torch.randn(1 << 22, generator=torch.Generator().manual_seed(0)).reshape(1 << 11, 1 << 11)
    by_torch, by_numpy = peak(lambda: ec.quantile_abs(x, 0.99))
    assert by_torch + by_numpy <= 4 * x.numel() / 4


def test_muon_works_in_a_bounded_stack():
    """Ten matrices take no more than one."""
    peaks = []
    for count in (1, 10):
        params = [torch.nn.Parameter(torch.ones(512, 512)) for _ in range(count)]
        optimizer = optim.Muon(params)
        for p in params:
            p.grad = torch.randn(512, 512, generator=torch.Generator().manual_seed(0))
        optimizer.step()
        peaks.append(peak(optimizer.step)[0])
    assert peaks[1] <= 1.1 * peaks[0]
