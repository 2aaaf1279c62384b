"""The plain path on a device: how many launches and bytes a step takes, and that its results are those of the host.

A limit that fails here means that someone added a pass over the data. Raise it only with a reason.
"""

import math

import pytest
import torch
from launches import step_launches
from recorder import Elsewhere

import entryclip as ec
from entryclip import optim
from entryclip.optim import device_shrinkage, stacked_clip
from entryclip.optim.device_shrinkage import shrink_on_device, shrinks_on_device
from entryclip.optim.finite import propagated
from entryclip.optim.methods import adamw, muon
from entryclip.thresholds import Step

SHAPE = (768, 3072)
FIXED = ec.Clip(ec.smooth_shrinkage, ec.Fixed(3.0))
RUNNING = ec.Clip(ec.smooth_shrinkage, ec.Running(ec.Quantile(0.995), beta=0.9))
MEDIAN = ec.Clip(ec.hard_clip, ec.Scale(8.0))

# Launches and bytes an entry of one step of a 768 x 3072 matrix in fp32. torch's fused AdamW takes 28 bytes.
LIMITS = {
    "adamw, no clip": (lambda p: optim.AdamW(p, post=None), 8, 80.0),
    "adamw, fixed": (lambda p: optim.AdamW(p, post=FIXED), 19, 116.1),
    "adamw, smooth": (lambda p: optim.AdamW(p), 53, 126.2),
    "adamw, hard": (lambda p: optim.AdamW(p, post=ec.hard(0.995)), 48, 118.2),
    "adamw, smooth, capturable": (lambda p: optim.AdamW(p, capturable=True), 63, 126.2),
    "adamw, no clip, capturable": (lambda p: optim.AdamW(p, post=None, capturable=True), 17, 72.1),
    "adamw, running": (lambda p: optim.AdamW(p, post=RUNNING), 68, 126.2),
    "adamw, smooth with rms kept": (lambda p: optim.AdamW(p, post=ec.smooth(0.995, preserve_rms=True)), 74, 186.2),
    "adamw, median": (lambda p: optim.AdamW(p, post=MEDIAN), 115, 260.2),
    "sgd, smooth": (lambda p: optim.SGD(p, momentum=0.9, post=ec.smooth(0.99)), 48, 78.2),
    "muon, no clip": (lambda p: optim.Muon(p, pre=None, precision=torch.bfloat16), 35, 122.1),
    "muon, smooth": (lambda p: optim.Muon(p, precision=torch.bfloat16), 80, 168.2),
}


@pytest.mark.parametrize("name", LIMITS)
def test_launches_and_bytes_of_a_step(name):
    make, launches, per_entry = LIMITS[name]
    found = step_launches(make, [SHAPE])
    assert found.synchronisations == 0
    assert found.count <= launches, found.operations
    assert found.bytes / math.prod(SHAPE) <= per_entry


# GPT-2 with 124M parameters: 148 of them, 50 of which are matrices.
BLOCK = [(768,), (768,), (2304, 768), (2304,), (768, 768), (768,), (768,), (768,), (3072, 768), (3072,), (768, 3072)]
GPT2 = [(50257, 768), (1024, 768), *[*BLOCK, (768,)] * 12, (768,), (768,)]
GPT2_LIMITS = {"adamw, no clip": (64, 80.1), "adamw, smooth": (204, 139.6), "adamw, running": (262, 139.6)}


@pytest.mark.parametrize("name", GPT2_LIMITS)
def test_the_parameters_of_a_model_share_launches(name):
    launches, per_entry = GPT2_LIMITS[name]
    found = step_launches(LIMITS[name][0], GPT2)
    assert found.synchronisations == 0
    assert found.count <= launches, found.operations
    assert found.bytes / sum(map(math.prod, GPT2)) <= per_entry


def test_half_precision_takes_fewer_bytes():
    smooth = step_launches(optim.AdamW, [SHAPE], torch.bfloat16)
    assert smooth.synchronisations == 0
    assert smooth.count <= 59, smooth.operations
    assert smooth.bytes / math.prod(SHAPE) <= 88.1


def test_a_known_threshold_costs_one_quantile_and_no_more():
    """With `lag=1` the threshold exists before the data; the quantile is still taken once, for the steps to come."""
    operations = step_launches(LIMITS["adamw, running"][0], [SHAPE]).operations
    assert operations["topk"] == 1
    assert operations["scatter_add"] == 0


def test_few_products_for_the_blocks_of_gpt2():
    """Two stacks, of 768 x 768 and of 768 x 3072 and its transpose: five steps of three products for each."""
    blocks = [(3, 768, 768), (768, 768), (3072, 768), (768, 3072)]
    assert step_launches(lambda p: optim.Muon(p, pre=None), blocks * 12).products == 30
    fused = step_launches(lambda p: optim.Staged([{"params": p, "method": "muon", "blocks": 3}]), [(2304, 768)] * 12)
    assert fused.products == 15


def test_mixed_shapes_in_one_stack(as_on_a_device):
    """Batches, blocks and transposes of one shape, each with the sign that it has alone."""
    shapes = [(6, 4), (4, 6), (2, 4, 6), (2, 3, 6, 4), (4, 4), (3, 4, 4)]
    tensors = [torch.randn(shape, generator=torch.Generator().manual_seed(i)) for i, shape in enumerate(shapes)]
    params = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
    for p, g in zip(params, tensors, strict=True):
        p.grad = g
    optimizer = optim.Muon(params, lr=1.0, weight_decay=0.0, pre=None, adjust_lr_fn="none")
    assert [len(batch) for batch in muon.MuonMethod().batches(params, optimizer.param_groups[0])] == [4, 2]
    with as_on_a_device:
        optimizer.step()
    for p, g in zip(params, tensors, strict=True):
        torch.testing.assert_close(-p.data, ec.msign(g), rtol=1e-5, atol=2e-5)


@pytest.fixture
def as_on_a_device(monkeypatch):
    """Lets CPU tensors take the device's path."""
    for module in (device_shrinkage, stacked_clip, adamw, muon):
        monkeypatch.setattr(module, "on_device", lambda x: True)
    return Elsewhere()


CLIPS = [
    ec.smooth(0.9, preserve_rms=True),
    ec.smooth(0.995),
    ec.smooth(0.5),
    FIXED,
    RUNNING,
    ec.Clip(ec.smooth_shrinkage, ec.Running(ec.Scale(3.0), 0.5, 0)),
]


@pytest.mark.parametrize("clip", [*CLIPS, ec.hard(0.9), None], ids=str)
@pytest.mark.parametrize("make", [optim.AdamW, optim.Muon, optim.SGD])
def test_a_device_takes_the_steps_of_the_host(clip, make, as_on_a_device):
    stage = "pre" if make is optim.Muon else "post"
    shapes = [(3, 20, 16), (12, 30), (16, 20), (30, 12)]
    twins = [[torch.nn.Parameter(torch.zeros(shape)) for shape in shapes] for _ in range(2)]
    here, there = (make(params, lr=1e-2, **{stage: clip}) for params in twins)
    for seed in range(20):
        for p, q in zip(*twins, strict=True):
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(seed))
            q.grad = p.grad.clone()
        with pytest.MonkeyPatch.context() as undone:
            for module in (device_shrinkage, stacked_clip, adamw, muon):
                undone.setattr(module, "on_device", lambda x: False)
            here.step()
        with as_on_a_device:
            there.step()
    for p, q in zip(*twins, strict=True):
        torch.testing.assert_close(q, p, rtol=2e-6, atol=1e-6 if make is optim.Muon else 2e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("clip", [*CLIPS, ec.Clip(ec.smooth_shrinkage, ec.Fixed(0.0)), ec.smooth(1.0)], ids=str)
@pytest.mark.parametrize("kind", ["gauss", "zeros", "inf", "nan", "tiny", "sparse"])
def test_shrinkage_on_a_device_is_the_operator(clip, kind, dtype, as_on_a_device):
    x = torch.randn(2, 9, 7, generator=torch.Generator().manual_seed(0)).to(dtype)
    x[0] = {
        "gauss": x[0],
        "zeros": 0 * x[0],
        "inf": x[0].where(x[0] < 1, math.inf),
        "nan": x[0].where(x[0] < 2, math.nan),
        "tiny": x[0] * torch.finfo(dtype).tiny / 4,
        "sparse": x[0] * (x[0] > 0.5),
    }[kind]
    eps = torch.finfo(dtype).eps if dtype.itemsize == 2 else 0.0  # the last bit of a half
    for m in (x, x.mT, x[0], x[0, 0]):
        expected, kept = clip.update(m, clip.init(m), Step(lr=1.0))
        assert shrinks_on_device(clip, m)
        with as_on_a_device:
            found, memory = shrink_on_device(m, clip, clip.init(m), Step(lr=1.0))
        torch.testing.assert_close(found, propagated(expected, m), rtol=max(1e-6, eps), atol=0, equal_nan=True)
        assert memory.keys() == kept.keys()
        for key in kept:
            torch.testing.assert_close(memory[key], kept[key], rtol=0, atol=0, equal_nan=True)
