"""The Triton kernels in Triton's interpreter, on CPU tensors: the same numbers as the plain path and `quantile_abs`.

The interpreter is chosen when the kernels are imported, so that these tests run in a process of their own: see
test_gpu.py, which starts it.
"""

import math
import os
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs TRITON_INTERPRET=1: test_gpu.py runs this file with it", allow_module_level=True)
pytest.importorskip("triton")

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the lists of test_fused.py

import test_fused
from fast_calls import fast_calls
from triton.runtime import interpreter

import entryclip as ec
from entryclip.optim.kernels import backends
from entryclip.optim.kernels.gpu import GPUBackend
from entryclip.optim.kernels.plan import AdamConstants, KernelPlan, Operator, ThresholdSource


@pytest.fixture(autouse=True, scope="module")
def _fast_calls():
    with fast_calls():
        yield


# numpy, in which the interpreter computes, warns of what the kernels do on purpose.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


class SmallBackend(GPUBackend):
    """The backend with tiles so small that a small matrix has several, which counts what it launches."""

    tile, block = 256, 128
    launches: list[str]

    def __init__(self, plan):
        super().__init__(plan)
        SmallBackend.last, self.launches = self, []

    def launch(self, kernel, programs, *arguments, **constants):
        self.launches.append(kernel.fn.__name__)
        super().launch(kernel, programs, *arguments, **constants)


class LargeBackend(SmallBackend):
    """The same with tiles for a whole matrix of the tests, which the interpreter runs faster."""

    tile, block = 2048, 2048


def values_of(kind, n, generator):
    """Return n numbers of a kind that a selection may get wrong."""
    x = torch.randn(n, generator=generator) * 10 ** torch.randint(-6, 3, (n,), generator=generator).float()
    chosen = torch.rand(n, generator=generator)
    match kind:
        case "ties":
            return torch.randint(-3, 4, (n,), generator=generator).float()
        case "equal":
            return torch.full((n,), -0.5)
        case "zeros":
            return torch.where(chosen < 0.9, torch.where(chosen < 0.5, 0.0, -0.0), x)
        case "all zero":
            return torch.zeros(n)
        case "inf":
            return torch.where(chosen < 0.1, math.inf, x)
        case "mostly inf":
            return torch.where(chosen < 0.9, math.inf, x)
        case "nan":
            return torch.where(chosen == chosen.min(), math.nan, x) if n else x
        case "subnormal":
            return x * 1e-42
        case "huge":
            return x.sign() * 3e38
    return x


KINDS = ["normal", "ties", "equal", "zeros", "all zero", "inf", "mostly inf", "nan", "subnormal", "huge"]


class Directions:
    """A plan whose directions are given numbers: u = m / sqrt(v) with v = 1, or 0 where u is to be inf or NaN.

    The gradient is 0 and the moments stay as they are (beta = 1), so that each run sees the same directions.
    """

    def __init__(self, xs, q, backend=SmallBackend, shift=0):
        def placed(x):  # at an address that is a multiple of 16 plus 4 * shift
            room = torch.zeros(x.numel() + 8)
            start = shift + (-room.data_ptr() // 4) % 4
            return room[start : start + x.numel()].copy_(x)

        finite = [torch.isfinite(x) for x in xs]
        self.m = [placed(torch.where(x.isinf(), x.sign(), x.nan_to_num(0))) for x in xs]
        self.v = [placed(ok.float()) for ok in finite]
        self.p, self.g = [placed(torch.zeros_like(x)) for x in xs], [placed(torch.zeros_like(x)) for x in xs]
        self.xs, self.q, count = xs, q, len(xs)
        bindings = [
            types.SimpleNamespace(w=p, m=m, v=v, half=None, addresses=(p.data_ptr(), m.data_ptr(), v.data_ptr()))
            for p, m, v in zip(self.p, self.m, self.v, strict=True)
        ]
        sizes = np.array([x.numel() for x in xs], np.int64)
        self.plan = KernelPlan(bindings, np.arange(count), np.zeros(count, np.int64), sizes, count, Operator.HARD, q)
        self.plan.gradients = self.g
        self.plan.constants = [AdamConstants(1.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0)]
        self.plan.source = np.full(count, ThresholdSource.PROPORTIONAL)
        self.plan.multiple = self.plan.threshold = np.full(count, 2.0)
        self.backend = backend(self.plan)

    def check(self):
        """Find the quantiles, and compare them and the thresholds to the bit."""
        found = self.backend.run(self.plan).clone()
        for x, value, threshold in zip(self.xs, found, self.backend._thresholds, strict=True):
            expected = float(ec.thresholds.ranked(x, self.q)) if x.numel() else 0.0
            np.testing.assert_array_equal(value.item(), expected)
            np.testing.assert_array_equal(threshold.item(), np.float32(2 * np.float64(expected)))
        return found

    def column(self, name):
        from entryclip.optim.kernels import triton_kernels

        return self.backend._search[:, getattr(triton_kernels, name).value]


QUANTILES = [
    pytest.param(q, shift, marks=[] if shift == i % 2 else pytest.mark.exhaustive)
    for i, q in enumerate([0.5, 0.995, 1.0, 1e-6])
    for shift in (0, 1)
]


@pytest.mark.parametrize(("q", "shift"), QUANTILES)
def test_quantiles_equal_the_plain_selection_to_the_bit(q, shift):
    generator = torch.Generator().manual_seed(0)
    sizes = (0, 1, 2, 3, 600) if q == 0.5 and not shift else (600 + shift,)
    directions = Directions([values_of(kind, n, generator) for kind in KINDS for n in sizes], q, LargeBackend, shift)
    directions.check()  # without a guess
    directions.check()  # in the bracket


@pytest.mark.parametrize("case", ["hit", "miss above", "miss below", "overflow", "one is missing", "no guess"])
def test_every_bracket_gives_the_quantile(case):
    """The bracket decides only which entries are counted: where it fails, the directions are made anew."""
    generator = torch.Generator().manual_seed(1)
    directions = Directions([torch.randn(700, generator=generator), torch.randn(5, generator=generator)], 0.5)
    exact = directions.check()
    ends = {
        "hit": (0.99, 1.01),
        "miss above": (2.0, 3.0),
        "miss below": (0.1, 0.2),
        "overflow": (0.1, 9.0),
        "one is missing": (0.1, 1.0),  # the upper end itself is not kept
        "no guess": (math.inf, math.inf),
    }[case]
    for name, end in zip(("LOW", "HIGH"), ends, strict=True):
        directions.column(name).copy_((end * exact).float().view(torch.int32))
    directions.check()
    hits = directions.column("IS_HIT").bool().tolist()
    assert hits[0] == (case in ("hit", "overflow"))
    if case == "overflow":
        assert (directions.backend._kept_counts > directions.backend._room).any()


@pytest.mark.parametrize("make", [ec.optim.AdamW, ec.optim.Muon])
def test_the_order_of_the_tiles_changes_nothing(make):
    results = []
    for shuffled in (False, True):
        generator = torch.Generator().manual_seed(2)
        ps = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((20, 33), (10, 10))]
        optimizer = make(ps, fused=True, lr=1e-2)
        for step in range(3):
            for p in ps:
                p.grad = torch.randn(p.shape, generator=generator)
            if shuffled and step:
                tiles = SmallBackend.last._tiles
                tiles.copy_(tiles[torch.randperm(len(tiles))])
            with_backend(optimizer.step, SmallBackend)
        results.append(ps)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def with_backend(call, backend):
    """Call with this backend in place of the CPU's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(backends.BACKENDS, "cpu", backend)
        return call()


def assert_close(plain, fast):
    """Compare the parameters and all of the state within 1e-6."""
    for a, b in zip(plain[0], fast[0], strict=True):
        torch.testing.assert_close(b, a, rtol=1e-6, atol=1e-6, equal_nan=True)
        assert list(plain[1].state[a]) == list(fast[1].state[b])
        for key, value in plain[1].state[a].items():
            torch.testing.assert_close(fast[1].state[b][key], value, rtol=1e-6, atol=1e-6, equal_nan=True, msg=key)


def compare(shapes, steps, backend=LargeBackend, **options):
    plain = test_fused.run(False, shapes, steps=steps, **options)
    fast = with_backend(lambda: test_fused.run(True, shapes, steps=steps, **options), backend)
    assert_close(plain, fast)


@pytest.mark.parametrize("clip", test_fused.COVERING_CLIPS, ids=str)
def test_twenty_steps_equal_the_plain_path(clip):
    compare([(40, 50), (33,)], 20, post=clip)


@pytest.mark.parametrize("clip", [ec.smooth(0.995), test_fused.RUNNING], ids=str)
def test_many_matrices_of_many_tiles(clip):
    compare([(20, 50), (3, 15, 20), (7, 5), (1, 1), (33,), (), (0, 4)], 2, SmallBackend, post=clip)


@pytest.mark.parametrize(
    "options", [{"maximize": True}, {"betas": (0.0, 0.5), "eps": 1e-3}, {"clip_vectors": True}], ids=str
)
def test_options(options):
    compare([(20, 30), (33,)], 4, **options)


@pytest.mark.parametrize("policy", ["propagate", "skip"])
@pytest.mark.parametrize("operator", [ec.smooth_shrinkage, ec.hard_clip])
@pytest.mark.parametrize("rule", [ec.Fixed(1.0), ec.Fixed(0.0), ec.Fixed(math.inf), ec.Quantile(0.5)], ids=str)
def test_policies_where_the_direction_is_not_finite(policy, operator, rule):
    """With eps = 0 a zero gradient gives 0/0, and one whose square underflows gives x/0."""

    def step(fast):
        w = torch.nn.Parameter(torch.zeros(6, 6))
        optimizer = ec.optim.AdamW([w], eps=0.0, fused=fast, nonfinite=policy, post=ec.Clip(operator, rule))
        w.grad = torch.linspace(-1, 1, 36).reshape(6, 6)
        w.grad[0, :3] = torch.tensor([1e-30, -1e-30, 0.0])
        optimizer.step()
        return [w], optimizer

    assert_close(step(False), with_backend(lambda: step(True), SmallBackend))


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("clip", [ec.smooth(0.9), ec.Clip(ec.hard_clip, ec.Fixed(1.0)), None], ids=str)
def test_a_broken_gradient_arrives(value, clip):
    def steps(fast):
        p = torch.nn.Parameter(torch.ones(20, 20))
        optimizer = ec.optim.AdamW([p], fused=fast, post=clip)
        for entry in (0.1, value):
            p.grad = torch.linspace(-1, 1, 400).reshape(20, 20)
            p.grad[3, 4] = entry
            optimizer.step()
        return p.detach()

    plain, fast = steps(False), with_backend(lambda: steps(True), LargeBackend)
    assert torch.equal(plain.isnan(), fast.isnan())
    assert plain[3, 4].isnan()


def test_a_huge_gradient_does_not_overflow():
    """g * g overflows at 3e19, (1 - beta2) * g * g does not."""

    def steps(fast):
        w, optimizer = test_fused.one_matrix(fast)
        for size in (3e19, 1.0):
            w.grad = torch.full((8, 8), size)
            optimizer.step()
        assert torch.isfinite(optimizer.state[w]["exp_avg_sq"]).all()
        return w.detach()

    torch.testing.assert_close(with_backend(lambda: steps(True), LargeBackend), steps(False), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_parameters_with_fp32_state(dtype):
    def steps(fast):
        w = torch.nn.Parameter(torch.linspace(-1, 1, 600).reshape(20, 30).to(dtype))
        optimizer = ec.optim.AdamW([w], lr=1e-2, fused=fast, fp32_state=True)
        generator = torch.Generator().manual_seed(0)
        for _ in range(4):
            w.grad = torch.randn(20, 30, generator=generator).to(dtype)
            optimizer.step()
        return w, optimizer.state[w]["master"]

    (_, expected), (w, master) = steps(False), with_backend(lambda: steps(True), LargeBackend)
    torch.testing.assert_close(master, expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(w, master.to(dtype))


SEARCH = ["locate", *(["digit", "choose"] * 4)]


@pytest.mark.parametrize(
    ("clip", "expected"),
    [
        (ec.smooth(0.995), ["walk", *SEARCH, "walk"]),
        (ec.Clip(ec.hard_clip, ec.Scale(3.0)), ["walk", *SEARCH, "walk"]),
        (ec.Clip(ec.hard_clip, ec.Fixed(1.0)), ["walk"]),
        (ec.Clip(ec.hard_clip, ec.FollowLR(ec.Fixed(1.0), base_lr=1e-3)), ["walk"]),
        (None, ["walk"]),
        (test_fused.RUNNING, ["walk", *SEARCH, "walk"]),
    ],
    ids=str,
)
def test_number_of_launches(clip, expected):
    """One set of launches steps all matrices and vectors of a group; a known threshold takes a single walk."""
    ps = [torch.nn.Parameter(torch.zeros(shape)) for shape in ((8, 8), (2, 8, 8), (12,))]
    optimizer = ec.optim.AdamW(ps, fused=True, post=clip)
    for _ in range(2):
        for p in ps:
            p.grad = torch.ones_like(p)
        with_backend(optimizer.step, LargeBackend)
    assert LargeBackend.last.launches == 2 * expected
    assert len(expected) <= 12


@pytest.fixture
def traffic(monkeypatch):
    """The bytes of entries that each walk and each digit read and wrote; single numbers, per tile, are left out."""
    counted = []

    def counting(name, mask_position):
        original = getattr(interpreter.InterpreterBuilder, name)

        def access(builder, pointers, *arguments):
            mask = arguments[mask_position].data
            if mask.size > 1:
                counted[-1] += int(mask.sum()) * pointers.get_element_ty().primitive_bitwidth // 8
            return original(builder, pointers, *arguments)

        monkeypatch.setattr(interpreter.InterpreterBuilder, name, access)

    class CountingBackend(LargeBackend):
        def launch(self, kernel, programs, *arguments, **constants):
            counted.append(0)
            super().launch(kernel, programs, *arguments, **constants)
            if kernel.fn.__name__ == "choose":  # a histogram per matrix, whatever its size
                counted.pop()

    counting("create_masked_load", 0)
    counting("create_masked_store", 1)
    return counted, CountingBackend


@pytest.mark.parametrize(
    ("clip", "first", "later"),
    [
        (ec.smooth(0.995), 68, 36),
        (ec.smooth(0.995, preserve_rms=True), 76, 44),
        (test_fused.RUNNING, 68, 28),
        (ec.Clip(ec.hard_clip, ec.Fixed(1.0)), 28, 28),
        (None, 28, 28),
    ],
    ids=str,
)
def test_bytes_per_entry(clip, first, later, traffic):
    """torch's fused AdamW moves 28. The bytes of the few magnitudes that are kept come on top, below 6 %."""
    check_bytes(lambda params: ec.optim.AdamW(params, post=clip), first, later, traffic)


def check_bytes(make, first, later, traffic):
    """Assert the bytes an entry of a step without a guess of the quantile, and of the one after it."""
    counted, backend = traffic
    p = torch.nn.Parameter(torch.zeros(64, 64))
    optimizer = make([p])
    generator = torch.Generator().manual_seed(0)

    def step():
        p.grad = torch.randn(64, 64, generator=generator)
        counted.clear()
        with_backend(optimizer.step, backend)
        return sum(counted) / p.numel()

    for _ in range(60):  # in the first steps |u| is near 1 everywhere: no bracket is narrow enough
        step()
    for key in [key for key in optimizer.state[p] if key.startswith(("pre_", "post_"))]:
        optimizer.state[p][key].zero_()  # as if the clip were new
    optimizer.param_groups[0]["fused"] = True
    assert first <= step() < 1.06 * first
    assert later <= step() < 1.06 * later


def test_a_known_threshold_moves_in_the_first_walk():
    """From the second step on `Running` needs one pass over the entries: its second walk finds nothing to do."""
    p = torch.nn.Parameter(torch.zeros(8, 8))
    optimizer = ec.optim.AdamW([p], fused=True, post=test_fused.RUNNING)
    for step in range(3):
        p.grad = torch.linspace(-1, 1, 64).reshape(8, 8)
        with_backend(optimizer.step, LargeBackend)
        assert LargeBackend.last._ready.tolist() == [int(step > 0)]
