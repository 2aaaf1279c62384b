"""attach() and ClippedMean: clipping in front of any optimizer."""

import copy
import gc
import io
import pickle
import weakref

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
    optimizer.grad_scale = torch.tensor(2.0)
    with pytest.raises(ValueError, match="unscales inside its step"):
        optimizer.step()


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.LBFGS])
def test_gradients_of_a_closure_are_clipped(kind):
    """Of each call: LBFGS calls its closure several times in a step."""
    ends = []
    for attached in (True, False):
        w, calls = torch.nn.Parameter(spiky((6, 5), 3)), []
        optimizer = kind([w], lr=1e-3)
        if attached:
            optim.attach(optimizer, grad=CLIP)

        def closure(w=w, optimizer=optimizer, attached=attached, calls=calls):
            optimizer.zero_grad()
            loss = (w * spiky((6, 5), 4)).square().sum()
            loss.backward()
            calls.append(w.grad.clone())
            w.grad = w.grad if attached else CLIP(w.grad)
            return loss

        for _ in range(2):
            assert optimizer.step(closure) > 0
        assert len(calls) > 2 or kind is torch.optim.SGD
        assert not attached or torch.equal(w.grad, calls[-1])  # the real gradient is back
        ends.append(w.detach())
    assert torch.equal(*ends)


def test_a_closure_adds_to_the_real_gradients():
    """As in gradient accumulation, where it does not clear them."""
    w = torch.nn.Parameter(torch.zeros(2, 2))
    optimizer = torch.optim.SGD([w], lr=1.0)
    optim.attach(optimizer, grad=ec.Clip(ec.hard_clip, ec.Fixed(1.0)))
    w.grad = 5 * torch.ones(2, 2)
    optimizer.step(lambda: (3 * w).sum().backward())
    assert (w.grad == 8).all()
    assert (w.data == -1).all()


RUNNING = ec.Clip(ec.hard_clip, ec.Running(ec.Quantile(0.9), beta=0.5))


def train(optimizer, first, last):
    params = [p for group in optimizer.param_groups for p in group["params"]]
    for step in range(first, last):
        for i, p in enumerate(params):
            p.grad = spiky(p.shape, 10 * step + i).to(p.dtype)
        optimizer.step()
    return [p.detach().clone() for p in params]


def attached_optimizer(kind, dtype=torch.float32, clip=RUNNING):
    params = [torch.nn.Parameter(torch.ones(shape, dtype=dtype)) for shape in ((6, 5), (5,), (2, 4, 4))]
    optimizer = kind(params, lr=0.1)
    return optimizer, optim.attach(optimizer, grad=clip)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW, optim.AdamW])
@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"]
)
def test_copies_clip_and_remember(kind, duplicate):
    optimizer, attached = attached_optimizer(kind)
    train(optimizer, 0, 3)
    twin = duplicate(optimizer)
    for a, b in zip(train(optimizer, 3, 6), train(twin, 3, 6), strict=True):
        assert torch.equal(a, b)
    attached.undo()
    for a, b in zip(train(optimizer, 6, 8), train(twin, 6, 8), strict=True):
        assert not torch.equal(a, b) or a.ndim < 2  # the copy still clips
    assert type(twin).__name__ == kind.__name__
    assert isinstance(twin, kind)


@pytest.mark.parametrize("clip", [RUNNING, ec.auto()], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW, optim.AdamW])
def test_resumes_to_the_bit_with_memory(kind, dtype, clip):
    """Through a file, and in the rule's own precision: torch casts a state to the parameter's dtype."""
    optimizer, _ = attached_optimizer(kind, dtype, clip)
    train(optimizer, 0, 3)
    file = io.BytesIO()
    torch.save([optimizer.state_dict(), train(optimizer, 3, 3)], file)
    file.seek(0)
    state, weights = torch.load(file, weights_only=True)
    other, _ = attached_optimizer(kind, dtype, clip)
    with torch.no_grad():
        for p, w in zip(other.param_groups[0]["params"], weights, strict=True):
            p.copy_(w)
    other.load_state_dict(state)
    for a, b in zip(train(optimizer, 3, 6), train(other, 3, 6), strict=True):
        assert torch.equal(a, b)
    plain = kind(other.param_groups[0]["params"], lr=0.1)  # without a clip it loads the same state dict
    plain.load_state_dict(state)
    train(plain, 3, 4)


def test_nothing_refers_to_itself():
    """The optimizer, and with it the parameters, are freed when the last reference goes, and not by a collection."""
    gc.collect()
    gc.disable()
    try:
        for scheduled in (False, True):
            optimizer, attached = attached_optimizer(torch.optim.SGD)
            if scheduled:
                torch.optim.lr_scheduler.StepLR(optimizer, 1)
            train(optimizer, 0, 2)
            gone = weakref.ref(optimizer)
            del optimizer, attached
            assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("scheduled_first", [False, True])
def test_undone_under_a_scheduler(scheduled_first):
    """The scheduler goes on to see the steps, which are the optimizer's own again."""
    w = torch.nn.Parameter(torch.zeros(2, 2))
    optimizer = torch.optim.SGD([w], lr=1.0)
    attached = None if scheduled_first else optim.attach(optimizer, grad=ec.Clip(ec.hard_clip, ec.Fixed(1.0)))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    attached = attached or optim.attach(optimizer, grad=ec.Clip(ec.hard_clip, ec.Fixed(1.0)))
    w.grad = 4 * torch.ones(2, 2)
    optimizer.step()
    scheduler.step()  # warnings are errors
    attached.undo()
    attached.undo()  # a second time changes nothing
    optimizer.step()
    scheduler.step()
    assert (w.data == -3).all()
    assert type(optimizer) is torch.optim.SGD


def test_a_tensor_as_learning_rate_and_vectors():
    v = torch.nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD([v], lr=torch.tensor([[1.0]]))
    clip = ec.Clip(ec.hard_clip, ec.FollowLR(ec.Fixed(1.0), base_lr=1.0))
    optim.attach(optimizer, grad=clip, clip_vectors=True)
    v.grad = torch.tensor([1.0, 2.0, 3.0, 4.0])
    optimizer.step()
    assert (v.data == -1).all()


def test_sparse_gradients_are_refused():
    w = torch.nn.Parameter(torch.zeros(3, 3))
    optimizer = torch.optim.SGD([w], lr=1.0)
    optim.attach(optimizer, grad=CLIP)
    w.grad = torch.eye(3).to_sparse()
    with pytest.raises(RuntimeError, match="does not take sparse gradients"):
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
