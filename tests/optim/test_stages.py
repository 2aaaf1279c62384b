"""Every optimizer x stage x operator against a reference of ten lines; what is clipped and what is not."""

import pytest
import torch

import entryclip as ec
from entryclip import optim

OPERATORS = [
    ec.hard_clip,
    ec.smooth_shrinkage,
    ec.soft_threshold,
    ec.global_clip,
    ec.spectral_clip,
    ec.soft_spectral_clip,
]
RULES = [ec.Quantile(0.9), ec.Fixed(0.3)]
LR, DECAY = 0.05, 0.1


def gradients(shape, steps=6, seed=0):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=g) * torch.exp(2 * torch.randn(shape, generator=g)) for _ in range(steps)]


def identity(x):
    return x


def reference(method, stage, clip, w, grads):
    """The paper's update, written out."""
    grad, pre, post = (clip if stage == s else identity for s in ("grad", "pre", "post"))
    m = v = torch.zeros_like(w)
    for t, g in enumerate(grads, 1):
        g = grad(g)
        if method == "sgd":
            m = g if t == 1 else 0.9 * m + g
            u = m
        elif method == "adamw":
            m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
            u = m / (1 - 0.9**t) / ((v / (1 - 0.99**t)).sqrt() + 1e-8)
        else:
            m = 0.95 * m + 0.05 * g
            u = 0.2 * max(w.shape[-2:]) ** 0.5 * ec.msign(pre(0.05 * g + 0.95 * m), "svd")
        w = w - LR * DECAY * w - LR * post(u)
    return w


def make(method, params, **clips):
    if method == "sgd":
        return optim.SGD(params, lr=LR, momentum=0.9, weight_decay=DECAY, **clips)
    if method == "adamw":
        return optim.AdamW(params, lr=LR, betas=(0.9, 0.99), weight_decay=DECAY, **{"post": None, **clips})
    options = {"adjust_lr_fn": "match_rms_adamw", "sign": "svd"}
    return optim.Muon(params, lr=LR, momentum=0.95, weight_decay=DECAY, **options, **{"pre": None, **clips})


CASES = [
    (method, stage)
    for method in ("sgd", "adamw", "muon")
    for stage in ("grad", "pre", "post")
    if stage != "pre" or method == "muon"
]


@pytest.mark.filterwarnings("ignore:a global norm clip")
@pytest.mark.parametrize(("method", "stage"), CASES)
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("shape", [(8, 12), (3, 6, 5)])
def test_reference(method, stage, operator, rule, shape):
    clip = ec.Clip(operator, rule)
    grads = gradients(shape)
    start = torch.randn(shape, generator=torch.Generator().manual_seed(9))
    w = torch.nn.Parameter(start.clone())
    optimizer = make(method, [w], **{stage: clip})
    for g in grads:
        w.grad = g.clone()
        optimizer.step()
        assert torch.equal(w.grad, g)
    expected = reference(method, stage, clip, start, grads)
    unclipped = reference(method, stage, identity, start, grads)
    torch.testing.assert_close(w.data, expected, rtol=1e-4, atol=2e-4)
    if stage != "pre" or operator in OPERATORS[:3]:  # a function of the singular values is lost on the matrix sign
        assert (expected - unclipped).abs().max() > 2e-3  # the clip was there to be seen


@pytest.mark.parametrize(("method", "stage"), CASES)
def test_a_batch_is_its_matrices(method, stage):
    clip = ec.smooth(0.9)
    together = torch.nn.Parameter(torch.zeros(3, 16, 16))
    apart = [torch.nn.Parameter(torch.zeros(16, 16)) for _ in range(3)]
    one, three = make(method, [together], **{stage: clip}), make(method, apart, **{stage: clip})
    for g in gradients((3, 16, 16)):
        together.grad = g
        for p, part in zip(apart, g, strict=True):
            p.grad = part.clone()
        one.step()
        three.step()
    torch.testing.assert_close(together.data, torch.stack([p.data for p in apart]), rtol=1e-5, atol=1e-6)


def test_vectors_and_scalars_are_left_alone_unless_asked():
    for ask in (False, True):
        v, s, w = (torch.nn.Parameter(torch.zeros(shape)) for shape in ((5,), (), (5, 5)))
        optimizer = optim.SGD([v, s, w], lr=1.0, post=ec.smooth(0.5), clip_vectors=ask)
        for p in (v, s, w):
            p.grad = torch.ones_like(p)
        optimizer.step()
        assert (v.data == -1).all() == (not ask)
        assert (s.data == -1).all() == (not ask)
        assert (w.data == -1).all() == False  # noqa: E712


def test_an_embedding_with_few_rows_still_moves():
    """200 of 50,257 rows have a gradient: a quantile over all entries would be 0 and stop them."""
    w = torch.nn.Parameter(torch.zeros(50257, 4))
    g = torch.zeros(50257, 4)
    g[::251] = torch.randn(201, 4, generator=torch.Generator().manual_seed(0))
    w.grad = g
    optim.SGD([w], lr=1.0, post=ec.hard(0.9)).step()
    moved = (w.data != 0).any(1)
    assert torch.equal(moved, (g != 0).any(1))


@pytest.mark.parametrize("blocks", [1, 3])
def test_fused_weights_are_cut_into_blocks(blocks):
    g = torch.cat(
        [scale * torch.randn(4, 6, generator=torch.Generator().manual_seed(0)) for scale in (1.0, 10.0, 100.0)]
    )
    w = torch.nn.Parameter(torch.zeros(12, 6))
    w.grad = g
    optim.Staged([{"params": [w], "method": "sgd", "lr": 1.0, "post": ec.hard(0.5), "blocks": blocks}]).step()
    expected = ec.hard(0.5)(g.reshape(blocks, -1, 6)).reshape(12, 6)
    torch.testing.assert_close(w.data, -expected)


def test_convolutions_flatten_to_one_matrix():
    w = torch.nn.Parameter(torch.zeros(8, 3, 3, 3))
    w.grad = torch.randn(8, 3, 3, 3, generator=torch.Generator().manual_seed(0))
    group = {
        "params": [w],
        "method": "muon",
        "lr": 1.0,
        "weight_decay": 0.0,
        "sign": "svd",
        "pre": None,
        "flatten": True,
    }
    optim.Staged([group]).step()
    s = torch.linalg.svdvals(w.data.reshape(8, 27))
    torch.testing.assert_close(s, torch.ones(8))


def test_muon_takes_equal_shapes_together_and_others_apart(monkeypatch):
    """In stacks of bounded size, with the same result."""
    shapes = [(8, 12), (12, 8), (8, 12), (8, 12), (2, 8, 12)]
    params = [torch.nn.Parameter(torch.ones(shape)) for shape in shapes]
    for p in params:
        p.grad = torch.ones_like(p)
    together = [len(batch) for batch in optim.Muon.method.batches(params, {})]
    assert together == [3, 1, 1]
    results = []
    for limit in (1, 1 << 22):
        monkeypatch.setattr(optim.methods.muon, "_STACK", limit)
        params = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
        optimizer = optim.Muon(params, lr=0.1)
        for p in params:
            p.grad = gradients(tuple(p.shape), 1)[0]
        optimizer.step()
        results.append([p.data for p in params])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_one_optimizer_for_muon_and_adamw():
    w, b = torch.nn.Parameter(torch.zeros(6, 6)), torch.nn.Parameter(torch.zeros(6))
    optimizer = optim.Staged(
        [{"params": [w], "method": "muon", "lr": 0.1}, {"params": [b], "method": "adamw", "weight_decay": 0.0}]
    )
    alone = torch.nn.Parameter(torch.zeros(6, 6))
    reference = optim.Muon([alone], lr=0.1)
    w.grad = alone.grad = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))
    b.grad = torch.ones(6)
    optimizer.step()
    reference.step()
    assert torch.equal(w, alone)
    torch.testing.assert_close(b.data, torch.full((6,), -1e-3))
    assert optimizer.param_groups[0]["pre"] == ec.smooth(0.99)
    assert optimizer.param_groups[1]["post"] == ec.smooth(0.995)
