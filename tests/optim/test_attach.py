"""attach() and ClippedMean: clipping in front of any optimizer."""

import pytest
import torch

import entryclip as ec
from entryclip import optim

CLIP = ec.smooth(0.9)


def spiky(shape, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=g) * torch.exp(2 * torch.randn(shape, generator=g))


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop, torch.optim.Adagrad])
def test_steps_as_if_the_gradients_were_clipped(kind):
    results = []
    for attached in (True, False):
        w, v = torch.nn.Parameter(torch.zeros(6, 5)), torch.nn.Parameter(torch.zeros(5))
        optimizer = kind([w, v], lr=0.1)
        if attached:
            optim.attach(optimizer, grad=CLIP)
        for step in range(4):
            w.grad, v.grad = spiky((6, 5), step), spiky((5,), 10 + step)
            if not attached:
                w.grad = CLIP(w.grad)
            given = w.grad
            optimizer.step()
            assert w.grad is given
        results.append((w.data, v.data))
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


def test_memory_and_undo():
    w = torch.nn.Parameter(torch.zeros(2, 2))
    optimizer = torch.optim.SGD([w], lr=1.0)
    with optim.attach(optimizer, grad=ec.Clip(ec.hard_clip, ec.Running(ec.Quantile(1.0), beta=0.5))) as attached:
        for size in (1.0, 100.0):
            w.grad = size * torch.ones(2, 2)
            optimizer.step()
        assert (w.data == -2).all()
        assert attached.steps == 2
        with pytest.raises(ValueError, match="attached to this optimizer already"):
            optim.attach(optimizer, grad=CLIP)
    optimizer.step()
    assert (w.data == -102).all()
    assert "step" not in optimizer.__dict__


def test_gradients_come_back_after_an_exception():
    w = torch.nn.Parameter(torch.zeros(2, 2))
    optimizer = torch.optim.SGD([w], lr=1.0)
    optim.attach(optimizer, grad=CLIP)
    w.grad = given = torch.ones(2, 2)

    def fail(*_):
        raise RuntimeError("in the middle of the step")

    optimizer.register_step_pre_hook(fail)
    with pytest.raises(RuntimeError, match="in the middle"):
        optimizer.step()
    assert w.grad is given
    assert (given == 1).all()


@pytest.mark.parametrize("order", ["before", "after"])
def test_with_a_scheduler(order):
    w = torch.nn.Parameter(torch.zeros(2, 2))
    optimizer = torch.optim.SGD([w], lr=1.0)
    if order == "before":
        optim.attach(optimizer, grad=ec.Clip(ec.hard_clip, ec.Fixed(1.0)))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    if order == "after":
        optim.attach(optimizer, grad=ec.Clip(ec.hard_clip, ec.Fixed(1.0)))
    for _ in range(2):
        w.grad = 7 * torch.ones(2, 2)
        optimizer.step()
        scheduler.step()
    assert (w.data == -1.5).all()


def test_gradscaler():
    w = torch.nn.Parameter(torch.zeros(2, 2))
    optimizer = torch.optim.SGD([w], lr=1.0)
    optim.attach(optimizer, grad=ec.Clip(ec.hard_clip, ec.Fixed(2.0)))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for loss, expected in (((3 * w).sum(), -2.0), ((float("inf") * w).sum(), -2.0)):
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        assert (w.data == expected).all()


def test_an_overflow_is_not_hidden():
    w = torch.nn.Parameter(torch.zeros(2, 2))
    optimizer = torch.optim.SGD([w], lr=1.0)
    optim.attach(optimizer, grad=ec.smooth(0.5))
    w.grad = torch.tensor([[1.0, float("inf")], [1.0, 1.0]])
    optimizer.step()
    assert torch.isnan(w.data).tolist() == [[False, True], [False, False]]


def test_what_cannot_be_done_is_refused():
    w = torch.nn.Parameter(torch.zeros(2, 2))
    optimizer = torch.optim.SGD([w], lr=1.0)
    with pytest.raises(TypeError, match="grad must be a Clip"):
        optim.attach(optimizer, grad=0.9)
    optim.attach(optimizer, grad=CLIP)
    with pytest.raises(ValueError, match="closure"):
        optimizer.step(lambda: 0.0)
    optimizer.grad_scale = torch.tensor(2.0)
    with pytest.raises(ValueError, match="unscales inside its step"):
        optimizer.step()


def test_clipped_mean_is_the_papers_equation():
    """Each sample clipped, then averaged; a mean that is clipped would let the spike through."""
    w, v = torch.nn.Parameter(torch.zeros(4, 5)), torch.nn.Parameter(torch.zeros(5))
    samples = [spiky((4, 5), seed) for seed in range(6)]
    mean = optim.ClippedMean([w, v], CLIP)
    for _ in range(2):  # the second round starts anew
        for sample in samples:
            ((w * sample).sum() + (v * sample[0]).sum()).backward()
            mean.collect()
            assert w.grad is None
        mean.write()
        torch.testing.assert_close(w.grad, torch.stack([CLIP(s) for s in samples]).mean(0), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(v.grad, torch.stack([s[0] for s in samples]).mean(0), rtol=1e-5, atol=1e-6)
        w.grad = v.grad = None


def test_clipped_mean_in_half_precision_and_without_gradients():
    w = torch.nn.Parameter(torch.zeros(2, 2, dtype=torch.bfloat16))
    mean = optim.ClippedMean([w], ec.hard(1.0))
    for size in (1.0, 0.0078125, None):
        if size is not None:
            w.grad = torch.full((2, 2), size, dtype=torch.bfloat16)
        mean.collect()
    mean.write()
    assert w.grad.dtype == torch.bfloat16
    torch.testing.assert_close(w.grad, torch.full((2, 2), 1.0078125 / 3, dtype=torch.bfloat16), rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="nothing was collected"):
        mean.write()
    with pytest.raises(TypeError, match="clip must be a Clip"):
        optim.ClippedMean([w], 0.9)
