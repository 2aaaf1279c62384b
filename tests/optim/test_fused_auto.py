"""auto() in AdamW's fused step: the same steps as the plain path's, without it."""

import copy

import pytest
import torch

import entryclip as ec
from entryclip.auto_threshold import Auto
from entryclip.optim.methods import adamw

SHAPES = [(300, 320), (3, 80, 90), (90, 90), (4, 6, 5), (7, 5), (1, 1), (33,), (), (0, 4)]
LAYOUTS = {
    "plain": {},
    "transposed": {"transposed": True},
    "flatten": {"flatten": True},
    "flatten, transposed": {"flatten": True, "transposed": True},
    "vectors": {"clip_vectors": True},
}
STAGES = ["grad", "post"]
EPS = 100.0  # so large that the direction is the momentum, with all its tails


def gradients(shapes, steps, seed=0):
    """Gaussian entries, rows of different scales, heavy tails and a spike in turn, with a column of zeros.

    At one step all are 2^20 times smaller, so that they jump at the next. For three steps the first row is 2^13 times
    larger, which raises the ceiling of the scales.
    """
    g = torch.Generator().manual_seed(seed)
    for step in range(steps):
        found = [torch.randn(shape, generator=g) for shape in shapes]
        for x in found:
            if step % 4 == 1 and x.ndim:
                x *= torch.randn(*x.shape[:-1], 1, generator=g).exp()
            if step % 4 == 2:
                x *= torch.randn(x.shape, generator=g).mul(2).exp()
            if step % 4 == 3 and x.numel():
                x.view(-1)[0] = 1e4
            if x.ndim >= 2:
                x[..., -1:] = 0
            if step == 5:
                x *= 2.0**-20
            if step in (8, 9, 10) and x.ndim >= 2 and min(x.shape[-2:]) > 0:
                x[..., 0, :] *= 2.0**13
        yield found


def trained(fused, shapes=SHAPES, steps=24, layout=(), clip=None, stage="post", **options):
    params = [torch.nn.Parameter(x) for x in next(gradients(shapes, 1, seed=1))]
    clips = {"post": None, stage: clip or ec.auto()}
    options = {"lr": 1.0, "weight_decay": 1e-3, "eps": EPS, **clips, **options}
    optimizer = ec.optim.AdamW([{"params": params, **dict(layout)}], fused=fused, **options)
    go_on(optimizer, params, shapes, steps)
    return params, optimizer


def go_on(optimizer, params, shapes=SHAPES, steps=24, seed=0):
    for found in gradients(shapes, steps, seed):
        for p, g in zip(params, found, strict=True):
            p.grad = g
        optimizer.step()


def assert_same(plain, fused):
    """What is clipped differs by rounding, so that now and then an entry falls into the next bin of a sketch."""
    for p, q in zip(plain[0], fused[0], strict=True):
        torch.testing.assert_close(q, p, rtol=1e-5, atol=1e-5)
        ours, theirs = fused[1].state[q], plain[1].state[p]
        assert set(ours) == set(theirs)
        for key, value in theirs.items():
            if key.endswith("_sketch"):
                assert (ours[key] - value).abs().sum() <= 1e-4 * value.sum() + 2.0
            else:
                size = value.abs().max().nan_to_num(posinf=0.0) if value.numel() else 0.0
                torch.testing.assert_close(ours[key], value, rtol=1e-5, atol=1e-6 * (1 + float(size)))


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("operator", [ec.smooth_shrinkage, ec.hard_clip])
@pytest.mark.parametrize("stage", STAGES)
def test_fused_equals_plain(stage, operator, layout, monkeypatch):
    options = {"clip": ec.auto(operator), "stage": stage, "layout": layout, "maximize": "transposed" in layout}
    plain = trained(False, **options)
    original = Auto.clip

    def only_for_empty_matrices(rule, x, operator, state):
        assert x.numel() == 0
        return original(rule, x, operator, state)

    monkeypatch.setattr(Auto, "clip", only_for_empty_matrices)
    assert_same(plain, trained(True, **options))


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("stage", STAGES)
def test_blocks_and_any_number_of_threads(stage, threads):
    shapes, before = [(3 * 64, 640)], torch.get_num_threads()
    plain = trained(False, shapes, layout={"blocks": 3}, stage=stage)
    torch.set_num_threads(threads)
    try:
        assert_same(plain, trained(True, shapes, layout={"blocks": 3}, stage=stage))
    finally:
        torch.set_num_threads(before)


def test_it_clips_and_guards():
    """The gradients above reach all that is compared: matrices that are clipped and matrices that are guarded."""
    for stage in STAGES:
        params, optimizer = trained(True, stage=stage)
        for p in params[:3]:
            sketch = optimizer.state[p][f"{stage}_sketch"]
            assert Auto().decide(sketch, ec.smooth_shrinkage, p.shape[-2:]).clips.all()
    gaussian = torch.nn.Parameter(torch.zeros(80, 90))
    optimizer = ec.optim.AdamW([gaussian], lr=1.0, weight_decay=0.0, betas=(0.0, 0.0), fused=True, post=ec.auto())
    gaussian.grad = torch.randn(80, 90, generator=torch.Generator().manual_seed(0))
    optimizer.step()  # the direction is the gradient's sign
    torch.testing.assert_close(gaussian.detach(), -gaussian.grad.sign(), rtol=0, atol=1e-3)


@pytest.mark.parametrize("policy", ["propagate", "skip"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("stage", STAGES)
def test_a_broken_gradient_arrives_as_in_the_plain_step(stage, value, policy):
    found = []
    for fused in (False, True):
        params, optimizer = trained(fused, [(80, 90)], 5, nonfinite=policy, stage=stage)
        params[0].grad = torch.ones(80, 90)
        params[0].grad[3, 5] = value
        optimizer.step()
        found.append(params[0].isfinite())
    assert torch.equal(*found)


@pytest.mark.parametrize("stage", STAGES)
def test_copies_and_checkpoints_go_on(stage):
    params, optimizer = trained(True, stage=stage)
    _, other = copy.deepcopy((params, optimizer))
    clips = {"post": None, stage: ec.auto()}
    plain = ec.optim.AdamW([torch.nn.Parameter(p.detach().clone()) for p in params], **clips)
    plain.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for group in plain.param_groups:
        group["fused"] = False
    runs = [(each.param_groups[0]["params"], each) for each in (optimizer, other, plain)]
    for own, each in runs:
        go_on(each, own, steps=6, seed=3)
    assert_same(runs[0], runs[1])
    assert_same(runs[2], runs[0])


def test_a_rule_made_from_auto_takes_the_plain_step():
    class Never(Auto):
        def clip(self, x, operator, state):
            return x, state

    params, _ = trained(True, [(80, 90)], 3, clip=ec.Clip(ec.hard_clip, Never()))
    unclipped = trained(True, [(80, 90)], 3, post=None)
    torch.testing.assert_close(params[0], unclipped[0][0])


def test_half_gradients_with_fp32_state():
    """The kernel reads fp32: gradients in half precision are widened for it, as on the plain path."""
    found = []
    for fused in (False, True):
        p = torch.nn.Parameter(torch.zeros(80, 90, dtype=torch.bfloat16))
        optimizer = ec.optim.AdamW([p], fp32_state=True, fused=fused, eps=EPS, post=None, grad=ec.auto())
        for (g,) in gradients([(80, 90)], 8):
            p.grad = g.bfloat16()
            optimizer.step()
        found.append(optimizer.state[p]["master"])
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-8)


def test_zeros_where_scales_underflow():
    """A threshold of 0, the product of a tiny row's and a tiny column's scale, leaves an entry of 0 what it is."""
    found = []
    for fused in (False, True):
        g, p = torch.Generator().manual_seed(0), torch.nn.Parameter(torch.zeros(128, 128))
        optimizer = ec.optim.AdamW([p], fused=fused, post=None, grad=ec.auto(), nonfinite="skip")
        for _ in range(2):
            p.grad = torch.randn(128, 128, generator=g) * torch.randn(128, 128, generator=g).mul(2).exp() * 1e-3
            p.grad[:16] *= 1e-20
            p.grad[:, :16] *= 1e-20
            optimizer.step()
        found.append(p.detach())
    assert (p.grad[:16, :16] == 0).any()
    assert found[1].isfinite().all()
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)


def test_the_kernel_is_compiled_before_the_first_step(monkeypatch):
    """A compiler that fails must not leave a step half done."""

    def fails():
        raise RuntimeError("no compiler")

    monkeypatch.setattr(adamw, "load_scaled_library", fails)
    with pytest.raises(RuntimeError, match="no compiler"):
        ec.optim.AdamW([torch.nn.Parameter(torch.zeros(8, 8))], fused=True, post=None, grad=ec.auto())
