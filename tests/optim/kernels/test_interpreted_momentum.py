"""The Triton kernels of Muon and SGD in Triton's interpreter, on CPU tensors: the plain path's numbers.

test_gpu.py runs this file in a process of its own, as test_interpreted.py.
"""

import math
import types

import numpy as np
import pytest
import torch
from test_interpreted import (
    KINDS,
    SEARCH,
    LargeBackend,
    SmallBackend,
    _fast_calls,  # noqa: F401 - a fixture
    assert_close,
    check_bytes,
    test_fused,
    traffic,  # noqa: F401 - a fixture
    values_of,
    with_backend,
)

import entryclip as ec
from entryclip.optim.kernels import momentum
from entryclip.optim.kernels.plan import DirectionKind, KernelPlan, MomentumConstants, Operator, ThresholdSource
from entryclip.optim.methods.muon import MuonMethod
from entryclip.optim.staged import Staged

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore:.*no kernel for SGD on a CPU")

RUNNING = test_fused.RUNNING
EVERY_RULE = [*test_fused.CLIPS[: 1 + len(test_fused.RULES)], ec.hard(0.995)]  # with smooth shrinkage but for one


class UnsignedMuon(MuonMethod):
    """Muon without its matrix sign: it moves by the clipped direction of norm 1, so that no rounding error grows."""

    name = "unsigned_muon"

    def sign(self, m, group):
        size = torch.linalg.matrix_norm(m, keepdim=True)
        return m / torch.where(size == 0, 1.0, size)

    def sign_of_unit(self, unit, group):
        return unit


def unsigned(params, **options):
    return Staged([{"params": params, "method": UnsignedMuon(), "weight_decay": 0.1, **options}])


def run(fast, make, shapes, steps, backend=LargeBackend, **options):
    params = [torch.nn.Parameter(x) for x in next(test_fused.gradients(shapes, 1, seed=1))]
    optimizer = make(params, lr=1e-2, fused=fast, **options)
    for found in test_fused.gradients(shapes, steps):
        for p, g in zip(params, found, strict=True):
            p.grad = g
        with_backend(optimizer.step, backend)
    return params, optimizer


def compare(make, shapes, steps, backend=LargeBackend, **options):
    plain, fast = (run(is_fast, make, shapes, steps, backend, **options) for is_fast in (False, True))
    assert_close(plain, fast)
    assert not fast[1]._fused[0].rest
    return plain, fast


@pytest.mark.parametrize("clip", EVERY_RULE, ids=str)
def test_twenty_steps_of_muon_equal_the_plain_path_before_the_sign(clip):
    compare(unsigned, [(24, 30)], 20, pre=clip)


def clips_and_options():
    """A running quantile with every kind of direction, the other clips with one kind each; the rest is exhaustive."""
    kinds = [{}, {"momentum": 0.9, "dampening": 0.1}, {"momentum": 0.8, "nesterov": True}]
    for i, clip in enumerate(test_fused.CLIPS[::5]):
        for j, options in enumerate(kinds):
            usual = i == 4 or i % 3 == j
            yield pytest.param(clip, options, marks=[] if usual else pytest.mark.exhaustive)


@pytest.mark.parametrize(("clip", "options"), list(clips_and_options()), ids=str)
def test_steps_of_sgd_equal_the_plain_path(clip, options):
    decay = 0.0 if clip is None else 0.1  # without a clip torch's decay is part of the gradient: the plain path's
    compare(ec.optim.SGD, [(24, 30), (33,)], 4, post=clip, weight_decay=decay, **options)


@pytest.mark.parametrize("clip", [ec.smooth(0.99), RUNNING, None], ids=str)
def test_many_matrices_of_many_tiles(clip):
    """Batches, one-by-one matrices, tall ones beside wide ones."""
    compare(unsigned, [(20, 30), (2, 15, 20), (1, 1), (20, 15)], 2, SmallBackend, pre=clip)


@pytest.mark.parametrize(
    "options",
    [
        {"nesterov": False},
        {"maximize": True},
        {"momentum": 0.0},
        {"blocks": 3},
        {"transposed": True},
        {"flatten": True},
        {"nonfinite": "skip"},
        {"grad": ec.hard(0.9)},
        {"adjust_lr_fn": "match_rms_adamw"},
        {"weight_decay": 0.0},
    ],
    ids=str,
)
def test_options(options):
    shapes = [(4, 3, 5, 2)] if "flatten" in options else [(24, 30)]
    compare(unsigned, shapes, 2, **options)


@pytest.mark.parametrize("sign", ["newton_schulz", "polar_express", "exact"])
def test_the_whole_step_of_muon(sign):
    plain, fast = (run(f, ec.optim.Muon, [(16, 30), (30, 16), (2, 9, 9)], 2, sign=sign) for f in (False, True))
    for a, b in zip(plain[0], fast[0], strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=1e-5)  # a step is 1e-2, of which the sign loses 1e-3


def test_muon_in_bf16():
    """The direction is rounded before it is divided by its norm: like the plain path up to the last bits of bf16."""
    options = {"precision": torch.bfloat16, "weight_decay": 0.0}
    plain, fast = (run(f, ec.optim.Muon, [(16, 30)], 2, **options) for f in (False, True))
    start = run(False, ec.optim.Muon, [(16, 30)], 0)[0][0]
    moved = torch.linalg.matrix_norm(plain[0][0] - start)
    assert torch.linalg.matrix_norm(plain[0][0] - fast[0][0]) < 0.03 * moved


def test_small_portions_take_the_same_steps(monkeypatch):
    shapes = [(8, 9), (9, 8), (5, 4)]
    whole = run(True, ec.optim.Muon, shapes, 2)
    monkeypatch.setattr(momentum, "_TOGETHER", 100)
    parts = run(True, ec.optim.Muon, shapes, 2)
    assert [count for _, count in parts[1]._fused[0]._portions] == [1, 2]
    assert all(torch.equal(a, b) for a, b in zip(whole[0], parts[0], strict=True))


def test_what_the_kernels_leave_to_the_plain_path():
    """A clip after the matrix sign, a transposed fused weight, a gradient that is not contiguous."""
    for options, shape in (({"post": ec.smooth(0.9)}, (12, 8)), ({"blocks": 2, "transposed": True}, (8, 12))):
        plain, fast = (run(f, unsigned, [shape], 2, **options) for f in (False, True))
        assert torch.equal(plain[0][0], fast[0][0])
        assert len(fast[1]._fused[0].rest) == 1
    p = torch.nn.Parameter(torch.zeros(8, 12))
    optimizer = ec.optim.Muon([p], fused=True)
    p.grad = torch.ones(12, 8).mT
    with_backend(optimizer.step, LargeBackend)
    assert optimizer._fused[0].rest == [p]


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("clip", [ec.smooth(0.9), ec.Clip(ec.hard_clip, ec.Fixed(1.0)), None], ids=str)
def test_a_broken_gradient_arrives(value, clip):
    """All of its matrix becomes NaN, and no other matrix."""
    for fast in (False, True):
        p = torch.nn.Parameter(torch.ones(2, 12, 9))
        optimizer = ec.optim.Muon([p], fused=fast, pre=clip)
        for entry in (0.1, value):
            p.grad = torch.linspace(-1, 1, 216).reshape(2, 12, 9)
            p.grad[0, 3, 4] = entry
            with_backend(optimizer.step, LargeBackend)
        assert p[0].isnan().all()
        assert p[1].isfinite().all()


def test_half_precision_parameters_with_fp32_state():
    def steps(fast):
        w = torch.nn.Parameter(torch.linspace(-1, 1, 600).reshape(20, 30).bfloat16())
        optimizer = unsigned([w], lr=1e-2, fused=fast, fp32_state=True)
        generator = torch.Generator().manual_seed(0)
        for _ in range(2):
            w.grad = torch.randn(20, 30, generator=generator).bfloat16()
            with_backend(optimizer.step, LargeBackend)
        return w, optimizer.state[w]["master"]

    (_, expected), (w, master) = steps(False), steps(True)
    torch.testing.assert_close(master, expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(w, master.bfloat16())


class WrittenDirections:
    """A plan whose directions are given numbers, in the buffer or in the gradient, and are written out."""

    constants = types.MappingProxyType(
        {
            DirectionKind.MOMENTUM: MomentumConstants(1.0, 0.0, 1.0, 0.0, 1.0, 0.0),
            DirectionKind.NESTEROV: MomentumConstants(1.0, 0.0, 1.0, 0.0, 1.0, 0.0),
            DirectionKind.GRADIENT: MomentumConstants(0.0, 1.0, 0.0, 1.0, 1.0, 0.0),
        }
    )

    def __init__(self, xs, kind, q=None, dtype=torch.float32, backend=LargeBackend):
        none = [torch.zeros_like(x) for x in xs]
        m, g = (none, xs) if kind is DirectionKind.GRADIENT else (xs, none)
        self.m, self.g = [x.clone() for x in m], [x.clone() for x in g]
        bindings = [types.SimpleNamespace(w=x, half=None, addresses=(0, x.data_ptr())) for x in self.m]
        sizes, count = np.array([x.numel() for x in xs], np.int64), len(xs)
        self.plan = KernelPlan(bindings, np.arange(count), np.zeros(count, np.int64), sizes, count if q else 0)
        self.plan.operator, self.plan.q, self.plan.kind = Operator.HARD if q else Operator.NONE, q, kind
        self.plan.gradients, self.plan.constants = self.g, [self.constants[kind]]
        self.plan.source = np.full(self.plan.clipped, ThresholdSource.PROPORTIONAL)
        self.plan.multiple = self.plan.threshold = np.ones(self.plan.clipped)
        self.plan.outputs = [torch.full_like(x, 7.0, dtype=dtype) for x in xs]
        self.backend = backend(self.plan)
        self.quantiles = self.backend.run(self.plan)
        self.inverse = self.backend.inverse_norms(self.plan)


@pytest.mark.parametrize("kind", WrittenDirections.constants)
def test_quantiles_equal_the_plain_selection_to_the_bit(kind):
    """Without a guess, so that every digit is counted on directions that are made anew."""
    generator = torch.Generator().manual_seed(0)
    xs = [values_of(name, 401, generator) for name in KINDS]
    found = WrittenDirections(xs, kind, 0.5)
    for x, value in zip(xs, found.quantiles, strict=True):
        np.testing.assert_array_equal(value.item(), float(ec.thresholds.ranked(x, 0.5)))


@pytest.mark.parametrize("shift", [0, 1], ids=["aligned", "unaligned"])
def test_what_is_written_out_in_bf16(shift):
    """It is fp32 rounded to the nearest, ties to even, to the bit; the norm is that of fp32."""
    generator = torch.Generator().manual_seed(0)
    xs = [values_of(name, 600 + shift, generator) for name in KINDS]
    xs.append(torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 3.4e38, -3.4e38, 1e-40, 0.0, -0.0]))  # ties, overflow
    for kind in (DirectionKind.MOMENTUM, DirectionKind.NESTEROV):
        exact = WrittenDirections(xs, kind)
        half = WrittenDirections(xs, kind, dtype=torch.bfloat16)
        for x, wide, written, inverse in zip(xs, exact.plan.outputs, half.plan.outputs, half.inverse, strict=True):
            for found, expected in ((wide, x), (written, x.bfloat16())):
                torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
            norm = x.double().norm().item()
            expected = math.nan if not math.isfinite(norm) else min(1 / norm, 3.4028234663852886e38) if norm else 1.0
            np.testing.assert_allclose(inverse.item(), expected, rtol=1e-6)
        assert torch.equal(exact.inverse.isnan(), half.inverse.isnan())


def test_the_norm_of_many_tiles():
    """More tiles than `inverse_norms` reads at a time, and a norm whose inverse does not fit into fp32."""
    x = torch.randn(256 * 140, generator=torch.Generator().manual_seed(0))
    found = WrittenDirections([x, torch.full((4,), 1e-42)], DirectionKind.MOMENTUM, backend=SmallBackend)
    assert found.inverse[0] == pytest.approx(1 / x.double().norm().item(), rel=1e-6)
    assert found.inverse[1] == torch.finfo(torch.float32).max


@pytest.mark.parametrize(
    ("clip", "expected"),
    [
        (ec.smooth(0.99), ["walk", *SEARCH, "walk"]),
        (RUNNING, ["walk", *SEARCH, "walk"]),
        (ec.Clip(ec.hard_clip, ec.Fixed(1.0)), ["walk"]),
        (None, ["walk"]),
    ],
    ids=str,
)
def test_number_of_launches(clip, expected):
    """One set of launches for all matrices of a group, whatever their shapes, and one for their norms."""
    ps = [torch.nn.Parameter(torch.zeros(shape)) for shape in ((8, 8), (2, 8, 8), (12, 4))]
    for make, stage, norms in ((ec.optim.Muon, "pre", ["inverse_norms"]), (ec.optim.SGD, "post", [])):
        optimizer = make(ps, fused=True, **{stage: clip})
        for _ in range(2):
            for p in ps:
                p.grad = torch.ones_like(p)
            with_backend(optimizer.step, LargeBackend)
        assert LargeBackend.last.launches == 2 * [*expected, *norms]
        assert len(expected) + len(norms) <= 12


@pytest.mark.parametrize(
    ("clip", "nesterov", "first", "later"),
    [
        (ec.smooth(0.99), True, 12 + 4 * 8 + 10, 12 + 10),
        (ec.smooth(0.99), False, 12 + 4 * 4 + 6, 12 + 6),
        (RUNNING, True, 12 + 4 * 8 + 10, 12 + 2),
        (ec.Clip(ec.hard_clip, ec.Fixed(1.0)), True, 14, 14),
        (None, True, 14, 14),
    ],
    ids=str,
)
def test_bytes_per_entry_of_muon(clip, nesterov, first, later, traffic):  # noqa: F811
    """Up to the matrix sign, in bf16. The few magnitudes that are kept and the squares come on top, below 6 %."""
    options = {"pre": clip, "nesterov": nesterov, "precision": torch.bfloat16}
    check_bytes(lambda params: ec.optim.Muon(params, **options), first, later, traffic)


@pytest.mark.parametrize(
    ("options", "first", "later"),
    [
        ({"momentum": 0.9, "post": ec.smooth(0.99)}, 12 + 4 * 4 + 12, 12 + 12),  # m, p and p
        ({"momentum": 0.9, "post": ec.Clip(ec.hard_clip, ec.Fixed(1.0))}, 20, 20),
        ({"post": ec.smooth(0.99)}, 4 + 4 * 4 + 12, 4 + 12),  # g, and g, p and p
    ],
    ids=str,
)
def test_bytes_per_entry_of_sgd(options, first, later, traffic):  # noqa: F811
    check_bytes(lambda params: ec.optim.SGD(params, **options), first, later, traffic)


def test_no_directions_are_kept_between_the_steps():
    _, optimizer = run(True, ec.optim.Muon, [(8, 9)], 1)
    assert all(not portion._plan.outputs for portion, _ in optimizer._fused[0]._portions)
