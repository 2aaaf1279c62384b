"""The Triton step in half precision, and with `preserve_rms`, in Triton's interpreter: see test_interpreted.py."""

import math
import os

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs TRITON_INTERPRET=1: test_gpu.py runs this file with it", allow_module_level=True)
pytest.importorskip("triton")

from test_interpreted import (
    SEARCH,
    LargeBackend,
    SmallBackend,
    _fast_calls,  # noqa: F401 - a fixture
    assert_close,
    compare,
    test_fused,
    traffic,  # noqa: F401 - a fixture
    with_backend,
)

import entryclip as ec
from entryclip.optim.kernels import triton_kernels as kernels

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
HALF = [torch.bfloat16, torch.float16]
PRESERVED = [
    ec.smooth(0.99, preserve_rms=True),
    ec.Clip(ec.smooth_shrinkage, ec.Fixed(0.7), preserve_rms=True),
    ec.Clip(ec.smooth_shrinkage, ec.Fixed(0.0), preserve_rms=True),
    ec.Clip(ec.hard_clip, ec.FollowLR(ec.Fixed(0.5), base_lr=1e-2), preserve_rms=True),
    ec.Clip(ec.hard_clip, ec.Scale(2.0), preserve_rms=True),
    ec.Clip(ec.smooth_shrinkage, ec.Running(ec.Quantile(0.99), beta=0.9), preserve_rms=True),
    ec.Clip(ec.hard_clip, ec.Running(ec.Scale(2.0), beta=0.5, lag=0), preserve_rms=True),
    ec.Clip(ec.hard_clip, ec.Running(ec.Fixed(0.5), beta=0.9), preserve_rms=True),
]


def same(a, b):
    """Tell whether two tensors have the same entries, zeros with their signs, and NaN anywhere for NaN."""
    return torch.equal(a.isnan(), b.isnan()) and bool(((a == b) & (a.signbit() == b.signbit()) | a.isnan()).all())


def placed(x, shift):
    """Copy `x` to an address that is `shift` entries past a multiple of 16 bytes."""
    room = torch.zeros(x.numel() + 32, dtype=x.dtype)
    start = (-room.data_ptr() % 16) // x.element_size() + shift
    return room[start : start + x.numel()].view(x.shape).copy_(x)


def half_steps(fast, dtypes, shapes, steps, shift=0, **options):
    """Take some steps of AdamW with fp32 state, on parameters of these dtypes and shapes."""
    kinds = [(dtype, shape) for dtype in dtypes for shape in shapes]
    drawn = next(test_fused.gradients(shapes, 1, seed=1))
    params = [torch.nn.Parameter(placed(x.to(d), shift)) for d in dtypes for x in drawn]
    optimizer = ec.optim.AdamW(params, lr=1e-2, weight_decay=0.1, fused=fast, fp32_state=True, **options)
    for found in test_fused.gradients([shape for _, shape in kinds], steps):
        for p, g in zip(params, found, strict=True):
            p.grad = placed(g.to(p.dtype), shift)
        optimizer.step()
    return params, optimizer


def compare_half(backend, *arguments, **options):
    """Compare the fp32 weights and moments within 1e-6, and the half parameters with what torch makes of the former."""
    plain = half_steps(False, *arguments, **options)
    fast = with_backend(lambda: half_steps(True, *arguments, **options), backend)
    for a, b in zip(plain[0], fast[0], strict=True):
        expected, found = plain[1].state[a], fast[1].state[b]
        assert expected.keys() == found.keys()
        for key, value in expected.items():
            torch.testing.assert_close(found[key], value, rtol=1e-6, atol=1e-6, msg=key)
        if b.dtype is torch.float32:
            torch.testing.assert_close(b, a, rtol=1e-6, atol=1e-6)
        else:
            assert torch.equal(b, found["master"].to(b.dtype))
    return fast


@pytest.mark.parametrize(("clip", "steps"), [(ec.smooth(0.99), 8), (test_fused.RUNNING, 3)], ids=str)
def test_steps_of_a_group_in_three_precisions(clip, steps):
    compare_half(LargeBackend, [*HALF, torch.float32], [(20, 30), (33,)], steps, post=clip)


@pytest.mark.parametrize("shift", [0, 1, 4], ids=["aligned", "unaligned", "aligned to 8 bytes"])
def test_many_matrices_of_many_tiles(shift):
    compare_half(SmallBackend, HALF, [(10, 48), (2, 5, 7), (0, 4)], 2, shift)


@pytest.mark.parametrize(("shifts", "expected"), [((0, 0), 1), ((8, 0), 1), ((4, 0), 0), ((0, 4), 0)], ids=str)
def test_loads_of_16_bytes_only_where_all_arrays_are_aligned(shifts, expected):
    """The interpreter reads any address: a wrong answer would show on a GPU alone."""
    p, g = (placed(torch.ones(8, 8, dtype=torch.bfloat16), shift) for shift in shifts)
    p = torch.nn.Parameter(p)
    p.grad = g
    with_backend(ec.optim.AdamW([p], fused=True, fp32_state=True, post=None).step, LargeBackend)
    assert LargeBackend.last._step._addresses[:, kernels.IS_ALIGNED.value].tolist() == [expected]


def test_a_clipped_gradient_and_a_clip_that_keeps_the_root_mean_square():
    options = {"grad": ec.hard(0.9), "post": ec.smooth(0.99, preserve_rms=True), "maximize": True}
    compare_half(LargeBackend, HALF, [(20, 30)], 3, **options)


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_every_gradient_is_read_as_it_is(dtype):
    """All 65,536 numbers there are, subnormal ones, infinities and NaN among them; with beta1 = 0 the moment is g."""

    def step(fast):
        p = torch.nn.Parameter(torch.zeros(256, 256, dtype=dtype))
        optimizer = ec.optim.AdamW([p], betas=(0.0, 0.5), fused=fast, fp32_state=True, post=None)
        p.grad = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype).reshape(256, 256)
        optimizer.step()
        return optimizer.state[p]["exp_avg"], p.grad.float()

    moment, expected = with_backend(lambda: step(True), LargeBackend)
    finite = expected.isfinite()
    assert torch.equal(moment[finite], expected[finite])
    assert same(moment.abs(), step(False)[0].abs())


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_every_parameter_is_rounded_to_nearest_even(dtype):
    """With a learning rate of 0 the weights stay, so that the parameter is the weights rounded, whatever they are."""
    generator = torch.Generator().manual_seed(0)
    anything = torch.randint(-(2**31), 2**31, (100, 256), generator=generator).to(torch.int32).view(torch.float32)
    grid = torch.randint(-(2**15), 2**15, (60, 256), generator=generator).to(torch.int16).view(dtype).float()
    between = (grid.view(torch.int32) + (1 << 15 if dtype is torch.bfloat16 else 1 << 12)).view(torch.float32)  # ties
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 3.4e38, -3.4e38, 65519.9, 65520.0, 6e-8, 2e-8])
    weights = torch.cat([anything, between, special.repeat(256)[:256][None]])
    p = torch.nn.Parameter(torch.zeros(weights.shape, dtype=dtype))
    optimizer = ec.optim.AdamW([p], lr=0.0, fused=True, fp32_state=True, post=None)
    optimizer.state[p]["master"] = weights.clone()
    p.grad = -torch.ones_like(p)  # moves -0 by -0, which leaves it
    with_backend(optimizer.step, LargeBackend)
    assert same(optimizer.state[p]["master"], weights)
    assert same(p.detach(), weights.to(dtype))


def test_no_operation_of_torch_touches_the_entries():
    """Gradients are not widened, parameters not copied to outside of the kernels, which would be launches for each."""
    p = torch.nn.Parameter(torch.ones(64, 77, dtype=torch.bfloat16))
    optimizer = ec.optim.AdamW([p], fused=True, fp32_state=True)
    for _ in range(2):  # the first step makes the state
        p.grad = torch.ones_like(p)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
            with_backend(optimizer.step, LargeBackend)
    touching = [event.name for event in profile.events() if [64, 77] in event.input_shapes]
    assert set(touching) <= {"aten::is_nonzero", "aten::detach"}
    assert torch.equal(p, optimizer.state[p]["master"].bfloat16())


def test_a_parameter_that_was_replaced_is_noticed():
    """`p.data` may be another tensor at each step, as some sharding libraries do."""
    results = []
    for fast in (False, True):
        p = torch.nn.Parameter(torch.ones(8, 8, dtype=torch.bfloat16))
        optimizer = ec.optim.AdamW([p], lr=0.1, fused=fast, fp32_state=True)
        for _ in range(3):
            p.grad = torch.linspace(-1, 1, 64).bfloat16().reshape(8, 8)
            with_backend(optimizer.step, LargeBackend) if fast else optimizer.step()
            p.data = p.data.clone()
        results.append(p.detach())
    torch.testing.assert_close(*results, rtol=2**-8, atol=0)
    assert not torch.equal(results[1], torch.ones(8, 8, dtype=torch.bfloat16))


@pytest.mark.parametrize("clip", PRESERVED, ids=str)
def test_twenty_steps_that_keep_the_root_mean_square(clip):
    compare([(40, 50)], 20, post=clip)


@pytest.mark.parametrize("clip", [PRESERVED[0], PRESERVED[5]], ids=str)
def test_the_root_mean_square_of_many_tiles(clip):
    compare([(20, 50), (3, 15, 20), (7, 5), (1, 1), (33,), (0, 4)], 2, SmallBackend, post=clip)


@pytest.mark.parametrize(
    ("g", "eps", "beta2", "threshold"),
    [
        (1.0, 1e-8, 0.5, 0.01),  # leaves 4e-44 of 1: the factor exceeds fp32's range
        (1.0, 1e30, 0.5, 1e-30),  # squares of the direction, 1e-30, vanish in fp32
        (5e-19, 1e-37, 1 - 1e-9, 1e19),  # those of this one, 5e18, overflow
    ],
)
def test_norms_beyond_the_range_of_fp32(g, eps, beta2, threshold):
    clip = ec.Clip(ec.smooth_shrinkage, ec.Fixed(threshold), preserve_rms=True)

    def step(fast):
        w = torch.nn.Parameter(torch.zeros(6, 6))
        optimizer = ec.optim.AdamW([w], lr=1.0, eps=eps, betas=(0.5, beta2), fused=fast, post=clip)
        w.grad = torch.full((6, 6), g)
        optimizer.step()
        return w.detach()

    plain, fast = step(False), with_backend(lambda: step(True), LargeBackend)
    torch.testing.assert_close(fast, plain, rtol=1e-6, atol=0)
    torch.testing.assert_close(plain, torch.full((6, 6), -min(g / eps, 1.0) if beta2 == 0.5 else -g / eps))


@pytest.mark.parametrize("policy", ["propagate", "skip"])
@pytest.mark.parametrize("operator", [ec.smooth_shrinkage, ec.hard_clip])
def test_a_direction_that_is_not_finite_is_not_scaled(policy, operator):
    def step(fast):
        w = torch.nn.Parameter(torch.zeros(6, 6))
        clip = ec.Clip(operator, ec.Fixed(0.7), preserve_rms=True)
        optimizer = ec.optim.AdamW([w], eps=0.0, fused=fast, nonfinite=policy, post=clip)
        w.grad = torch.linspace(-1, 1, 36).reshape(6, 6)
        w.grad[0, :2] = torch.tensor([1e-30, -1e-30])  # its square vanishes: x / 0
        optimizer.step()
        return [w], optimizer

    assert_close(step(False), with_backend(lambda: step(True), LargeBackend))


@pytest.mark.parametrize("clip", [ec.smooth(0.99, preserve_rms=True), PRESERVED[5]], ids=str)
def test_the_order_of_the_tiles_changes_no_bit_of_the_root_mean_square(clip):
    results = []
    for shuffled in (False, True):
        generator = torch.Generator().manual_seed(2)
        ps = [torch.nn.Parameter(torch.randn(shape, generator=generator).bfloat16()) for shape in ((20, 33), (10, 10))]
        optimizer = ec.optim.AdamW(ps, fused=True, lr=1e-2, post=clip, fp32_state=True)
        for step in range(3):
            for p in ps:
                p.grad = torch.randn(p.shape, generator=generator).bfloat16()
            if shuffled and step:
                tiles = SmallBackend.last._tiles
                tiles.copy_(tiles[torch.randperm(len(tiles))])
            with_backend(optimizer.step, SmallBackend)
        results.append([optimizer.state[p]["master"] for p in ps])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize(
    ("clip", "expected"),
    [
        (ec.smooth(0.995), ["walk", *SEARCH, "walk"]),
        (ec.smooth(0.995, preserve_rms=True), ["walk", *SEARCH, "walk", "walk"]),
        (PRESERVED[5], ["walk", *SEARCH, "walk", "walk"]),
        (PRESERVED[1], ["walk", "walk"]),
        (None, ["walk"]),
    ],
    ids=str,
)
def test_number_of_launches(clip, expected):
    """Half precision takes no launch more, keeping the root mean square one."""
    ps = [torch.nn.Parameter(torch.zeros(8, 8, dtype=dtype)) for dtype in (*HALF, torch.float32)]
    optimizer = ec.optim.AdamW(ps, fused=True, post=clip, fp32_state=True)
    for _ in range(2):
        for p in ps:
            p.grad = torch.ones_like(p)
        with_backend(optimizer.step, LargeBackend)
    assert LargeBackend.last.launches == 2 * expected
    assert len(expected) <= 12


@pytest.mark.parametrize(
    ("clip", "dtype", "expected"),
    [
        (ec.smooth(0.995), torch.bfloat16, 36),
        (test_fused.RUNNING, torch.float16, 28),
        (PRESERVED[5], torch.float32, 36),
    ],
    ids=str,
)
def test_bytes_per_entry(clip, dtype, expected, traffic):  # noqa: F811
    """The bytes of the few magnitudes that are kept come on top, below 6 %."""
    counted, backend = traffic
    p = torch.nn.Parameter(torch.zeros(64, 64, dtype=dtype))
    optimizer = ec.optim.AdamW([p], post=clip, fp32_state=True)
    generator = torch.Generator().manual_seed(0)
    for step in range(62):  # in the first steps |u| is near 1 everywhere: no bracket is narrow enough
        optimizer.param_groups[0]["fused"] = step >= 60
        p.grad = torch.randn(64, 64, generator=generator).to(dtype)
        counted.clear()
        with_backend(optimizer.step, backend)
    assert expected <= sum(counted) / p.numel() < 1.06 * expected


def test_a_half_parameter_without_fp32_state_takes_the_plain_step():
    """There every operation of the plain step rounds to half precision, which the kernels do not do."""
    results = []
    for fast in (False, True):
        p = torch.nn.Parameter(torch.linspace(-1, 1, 64).bfloat16().reshape(8, 8))
        p.grad = torch.ones_like(p)
        optimizer = ec.optim.AdamW([p], fused=fast)
        with_backend(optimizer.step, LargeBackend) if fast else optimizer.step()
        results.append(([p], optimizer))
    assert torch.equal(results[0][0][0], results[1][0][0])
    assert_close(*results)
