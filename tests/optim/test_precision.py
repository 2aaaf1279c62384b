"""bf16 parameters with fp32_state=True follow the fp32 run; without it small steps are lost in rounding."""

import copy

import pytest
import torch

import entryclip as ec
from entryclip import optim

MAKERS = {
    "adamw": lambda p, **options: optim.AdamW(p, 1e-4, **options),
    "muon": lambda p, **options: optim.Muon(
        p, 1e-4, adjust_lr_fn="match_rms_adamw", precision=torch.float32, **options
    ),
    "sgd": lambda p, **options: optim.SGD(p, 1e-4, momentum=0.9, grad=ec.smooth(0.99), **options),
}


def start(dtype):
    return torch.nn.Parameter(torch.randn(6, 8, generator=torch.Generator().manual_seed(0)).bfloat16().to(dtype))


def run(make, dtype, steps, **options):
    """A gradient that does not depend on the weights: what differs is the optimizer's arithmetic alone."""
    p = start(dtype)
    optimizer = make([p], **options)
    generator = torch.Generator().manual_seed(1)
    mean = torch.randn(6, 8, generator=generator)
    for _ in range(steps):
        p.grad = (mean + torch.randn(6, 8, generator=generator)).bfloat16().to(dtype)
        optimizer.step()
    return p, optimizer


@pytest.mark.parametrize("name", MAKERS)
def test_a_thousand_small_steps_follow_fp32(name):
    fp32, _ = run(MAKERS[name], torch.float32, 1000)
    bf16, optimizer = run(MAKERS[name], torch.bfloat16, 1000, fp32_state=True)
    moved = (fp32 - start(torch.float32)).norm()
    assert bf16.dtype == torch.bfloat16
    assert all(t.dtype == torch.float32 for t in optimizer.state[bf16].values())
    torch.testing.assert_close(optimizer.state[bf16]["master"], fp32.detach(), rtol=1e-5, atol=1e-6)
    assert torch.equal(bf16, optimizer.state[bf16]["master"].bfloat16())  # one rounding away, not a thousand
    lost, _ = run(MAKERS[name], torch.bfloat16, 1000)
    assert (lost - fp32).norm() > 0.2 * moved  # why the option is there


@pytest.mark.parametrize("name", MAKERS)
def test_resumes_to_the_bit(name):
    p, optimizer = run(MAKERS[name], torch.bfloat16, 5, fp32_state=True)
    q = copy.deepcopy(p)
    other = MAKERS[name]([q], fp32_state=True)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for step in range(3):
        for parameter, each in ((p, optimizer), (q, other)):
            parameter.grad = torch.randn(6, 8, generator=torch.Generator().manual_seed(step)).bfloat16()
            each.step()
    assert torch.equal(optimizer.state[p]["master"], other.state[q]["master"])
    assert torch.equal(p, q)


def test_fp32_parameters_need_no_copy():
    p, optimizer = run(MAKERS["adamw"], torch.float32, 2, fp32_state=True)
    assert "master" not in optimizer.state[p]


def test_a_torch_checkpoint_of_a_bf16_run_goes_on():
    p = start(torch.bfloat16)
    p.grad = torch.ones_like(p)
    theirs = torch.optim.AdamW([p])
    theirs.step()
    ours = optim.AdamW([p], fp32_state=True)
    ours.load_state_dict(theirs.state_dict())
    ours.step()
    assert ours.state[p]["master"].dtype == torch.float32
    assert torch.isfinite(p).all()
