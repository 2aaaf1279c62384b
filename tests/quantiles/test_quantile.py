import math
import tracemalloc

import jax
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from libraries import CASES, LIBRARIES, make, values

import entryclip as ec
from entryclip.quantiles import selection
from entryclip.quantiles.counting import bisect
from entryclip.quantiles.order import magnitude_bits

INF, NAN = math.inf, math.nan
LEVELS = st.one_of(st.sampled_from([0.0, 0.5, 0.99, 0.995, 1.0]), st.floats(0, 1))


def random_values(rng: np.random.Generator, size: int) -> np.ndarray:
    """Gaussian, heavy-tailed, few distinct values, all equal, mostly zero, subnormal, some infinite."""
    kind = rng.integers(7)
    gauss = rng.standard_normal(size)
    return [
        gauss,
        rng.standard_cauchy(size),
        rng.integers(-2, 3, size).astype(float),
        np.full(size, rng.standard_normal()),
        gauss * (rng.random(size) < 0.1),
        gauss * 1e-310,
        np.where(rng.random(size) < 0.2, INF, gauss),
    ][kind]


def numpy_quantile(magnitudes: np.ndarray, q: float) -> float:
    """numpy's, but for the limit where it computes inf - inf."""
    order, position = np.sort(magnitudes, axis=None), q * (magnitudes.size - 1)
    low, high = order[int(position)], order[min(int(position) + 1, magnitudes.size - 1)]
    if np.isinf(high):
        return low if position == int(position) else high
    return float(np.quantile(magnitudes, q))


@pytest.mark.parametrize("seed", range(4))
def test_agrees_with_numpy_in_fp64(seed):
    """To the bit, over thousands of shapes, levels, ties and duplicates."""
    rng = np.random.default_rng(seed)
    for _ in range(800):
        shape = tuple(rng.integers(1, 9, rng.integers(1, 4)))
        x = random_values(rng, math.prod(shape)).reshape(shape)
        q = float(rng.choice([rng.random(), 0, 0.5, 0.995, 1]))
        expected = numpy_quantile(np.abs(x), q)
        assert ec.quantile_abs(x, q) == expected
        assert ec.quantile_abs(torch.from_numpy(x), q).item() == expected


@pytest.mark.parametrize(("library", "dtype"), CASES)
@given(data=st.data(), q=LEVELS)
def test_every_dtype_is_exact(library, dtype, data, q):
    size = data.draw(st.sampled_from([1, 2, 7, 40]))
    numbers = data.draw(st.lists(st.floats(-60000, 60000, width=16), min_size=size, max_size=size))
    x = make(library, dtype, numbers)
    got = ec.quantile_abs(x, q)
    expected = np.quantile(np.abs(values(x)), q)
    rounding = 0 if dtype == "float64" else 1e-7 if library != "jax" else 1e-6  # jax interpolates in fp32
    np.testing.assert_allclose(float(got), expected, rtol=rounding, atol=1e-37)


@given(seed=st.integers(0, 2**31), q=LEVELS, nonzero=st.booleans())
def test_three_ways_one_answer(seed, q, nonzero):
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(random_values(rng, int(rng.integers(1, 200)))).to(
        [torch.float64, torch.float32, torch.bfloat16, torch.float16][rng.integers(4)]
    )[None]
    partition = selection.partition(selection._magnitudes(x), q, nonzero)
    counting = bisect(magnitude_bits(x), q, nonzero)
    low, high = (int(magnitude_bits(x.new_tensor(end))) for end in sorted(rng.choice([0, 1e-300, 0.5, 1, 2, INF], 2)))
    ends = (low, None if rng.random() < 0.3 else high)
    bracket = selection.bracket(selection._raw(x[0]), q, nonzero, ends)
    for other in (counting, bracket):
        if other is not None:
            assert [float(np.ravel(part)[0]) for part in other] == [float(np.ravel(part)[0]) for part in partition]


@pytest.mark.parametrize("kind", ["few values", "all equal", "rounded", "one distinct"])
@pytest.mark.parametrize("shape", [(1 << 17,), (512, 256), (2, 400, 400)])
def test_ties(kind, shape):
    """Adam's first step: |u| = 1 up to rounding. numpy's selection would take ten times as long."""
    rng = np.random.default_rng(0)
    x = {
        "few values": rng.choice([0.0, 1.0, 1 + 2**-23, 1 + 2**-22], shape),
        "all equal": np.ones(shape),
        "rounded": rng.standard_normal(shape).round(1),
        "one distinct": np.where(np.arange(math.prod(shape)).reshape(shape) == 7, 3.0, 1.0),
    }[kind].astype(np.float32)
    for q in (0.0, 0.3, 0.5, 0.9, 0.995, 1.0):
        expected = np.quantile(np.abs(x).astype(np.float64), q)
        assert ec.quantile_abs(torch.from_numpy(x), q).item() == pytest.approx(expected, rel=1e-7)
    np.testing.assert_allclose(
        ec.quantile_abs(x, 0.9, dim=-1, nonzero=False),
        np.quantile(np.abs(x).astype(np.float64), 0.9, axis=-1),
        rtol=1e-6,
    )


@pytest.mark.parametrize("kind", ["gauss", "equal", "two values", "zeros", "cauchy"])
def test_one_pass_around_a_sample_is_exact(kind, monkeypatch):
    """The way of long rows, at sizes that a test can afford."""
    monkeypatch.setattr(selection, "_HUGE", 1 << 12)
    monkeypatch.setattr(selection, "_LONG", 1)
    monkeypatch.setattr(selection, "_CHUNK", 1 << 10)
    rng = np.random.default_rng(0)
    x = {
        "gauss": rng.standard_normal(5000),
        "equal": np.full(5000, -2.8),
        "two values": rng.choice([-1.0, 2.8], 5000),
        "zeros": np.zeros(5000),
        "cauchy": rng.standard_cauchy(5000),
    }[kind]
    for q in (0.0, 0.3, 0.5, 0.9, 0.995, 1.0):
        expected = np.quantile(np.abs(x), q)
        assert ec.quantile_abs(x, q) == expected
        assert ec.quantile_abs(torch.from_numpy(x), q).item() == expected


@pytest.mark.parametrize("library", LIBRARIES)
def test_shapes(library):
    numbers = np.random.default_rng(1).standard_normal((4, 3, 5))
    x = make(library, "float32", numbers)
    magnitudes = np.abs(values(x))
    for dim in (None, 0, -1, (-2, -1), (0, 2), (0, 1, 2)):
        for q in (0.7, [0.1, 0.7], (0.5,)):
            got = ec.quantile_abs(x, q, dim=dim)
            expected = np.quantile(magnitudes, q, axis=dim)
            assert got.shape == expected.shape
            np.testing.assert_allclose(values(got), expected, rtol=1e-6)


@pytest.mark.parametrize("library", LIBRARIES)
def test_levels_as_an_array(library):
    """A 1-d tensor or array of levels gives the result's first dimension, as in torch.quantile; a 0-d one none."""
    x = make(library, "float32", np.random.default_rng(1).standard_normal((3, 4, 5)))
    for kind in LIBRARIES:
        levels = make(kind, "float32", [0.25, 0.75])
        got = ec.quantile_abs(x, levels, dim=(-2, -1))
        np.testing.assert_array_equal(values(got), values(ec.quantile_abs(x, [0.25, 0.75], dim=(-2, -1))))
        assert tuple(ec.quantile_abs(x, levels[0], dim=-1).shape) == (3, 4)
    if library == "torch":
        torch.testing.assert_close(got, torch.quantile(x.abs().flatten(1), torch.tensor([0.25, 0.75]), dim=-1))


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("nonzero", [False, True])
def test_empty_batches(library, nonzero):
    for shape, dim, expected in (((0, 3, 4), (-2, -1), (0,)), ((2, 0, 5), -1, (2, 0)), ((3, 0), 0, (0,))):
        x = make(library, "float32", np.zeros(shape))
        assert tuple(ec.quantile_abs(x, 0.5, dim=dim, nonzero=nonzero).shape) == expected
        several = ec.quantile_abs(x, [0.1, 0.5, 0.9], dim=dim, nonzero=nonzero)
        assert tuple(several.shape) == (3, *expected)
        assert several.dtype == x.dtype
    if library == "torch":
        assert ec.quantile_abs(torch.zeros(0, 3), 0.5, dim=-1, sample=5).shape == (0,)


@pytest.mark.parametrize(("library", "dtype"), CASES)
def test_scalars(library, dtype):
    for number in (-2.5, 0.0, INF, NAN):
        x = make(library, dtype, number)
        for dim in (None, 0, -1, ()):
            for q in (0.0, 0.3, 1.0):
                got = ec.quantile_abs(x, q, dim=dim, nonzero=True)
                assert tuple(got.shape) == ()
                np.testing.assert_equal(float(got), abs(number))
        assert tuple(ec.quantile_abs(x, [0.1, 0.2]).shape) == (2,)


def test_masked_arrays_are_refused():
    """Their mask was ignored: the masked 100 counted."""
    x = np.ma.array([1.0, 2.0, 100.0], mask=[False, False, True])
    with pytest.raises(TypeError, match=r"x is a masked array.*pass x\.compressed\(\)"):
        ec.quantile_abs(x, 1.0)
    with pytest.raises(TypeError, match="masked array"):
        ec.smooth(0.9)(x)
    assert ec.quantile_abs(x.compressed(), 1.0) == 2


def test_views_without_a_copy_of_the_whole():
    x = torch.randn(40, 50, generator=torch.Generator().manual_seed(0))
    for view in (x.T, x[::2, 1::3], x[:, 0], x.expand(3, 40, 50), x.as_strided((30, 30), (1, 50)), x.flip(0)):
        assert ec.quantile_abs(view, 0.9).item() == pytest.approx(
            np.quantile(view.abs().double().numpy(), 0.9), rel=1e-7
        )


@pytest.mark.parametrize("library", LIBRARIES)
def test_nan_and_inf(library):
    for q in (0.0, 0.5, 1.0):
        assert math.isnan(float(ec.quantile_abs(make(library, "float32", [1.0, NAN, 2.0]), q)))
    x = make(library, "float32", [1.0, -INF, 2.0, INF, 3.0])
    levels = [0.0, 0.5, 0.6, 0.7, 0.74, 0.75, 0.9, 1.0]
    assert [float(v) for v in ec.quantile_abs(x, levels)] == [1, 3, INF, INF, INF, INF, INF, INF]
    rows = make(library, "float32", [[1.0, 2.0], [NAN, 2.0]])
    assert np.isnan(values(ec.quantile_abs(rows, 0.5, dim=1))).tolist() == [False, True]


@pytest.mark.parametrize("library", LIBRARIES)
def test_nonzero_ranks_only_what_is_not_zero(library):
    x = make(
        library,
        "float32",
        [[0.0, -3.0, 0.0, 1.0, 2.0], [0.0, 0.0, 0.0, 0.0, -7.0], [0.0] * 5, [5.0, 4.0, 3.0, 2.0, 1.0]],
    )
    got = values(ec.quantile_abs(x, 0.75, dim=1, nonzero=True))
    np.testing.assert_allclose(got, [2.5, 7.0, 0.0, 4.0])


def test_no_host_round_trip_under_compile_and_jit():
    """The counting engine traces without a data-dependent branch, so on a device it never waits for the host."""
    x = torch.randn(6, 7, generator=torch.Generator().manual_seed(0))
    compiled = torch.compile(lambda x: ec.quantile_abs(x, 0.9, nonzero=True), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), ec.quantile_abs(x, 0.9))
    meta = ec.quantile_abs(torch.empty(3, 4, 5, device="meta"), [0.1, 0.9], dim=(-2, -1))
    assert meta.shape == (2, 3)
    assert meta.device.type == "meta"
    jitted = jax.jit(lambda x: ec.quantile_abs(x, 0.9, nonzero=True))(x.numpy())
    assert float(jitted) == pytest.approx(float(ec.quantile_abs(x, 0.9)), rel=1e-6)


def test_more_entries_than_torch_takes():
    x = torch.randn((1 << 24) + 1, generator=torch.Generator().manual_seed(0))
    with pytest.raises(RuntimeError, match="too large"):
        torch.quantile(x, 0.5)
    magnitudes = x.abs().numpy()
    k = round(0.995 * (x.numel() - 1))
    magnitudes.partition(k)
    assert ec.quantile_abs(x, k / (x.numel() - 1)).item() == pytest.approx(magnitudes[k], rel=1e-6)
    assert ec.quantile_abs(x.bfloat16(), 0.995).item() == pytest.approx(magnitudes[k], rel=5e-3)


@settings(max_examples=20)
@given(q=st.sampled_from([0.5, 0.9, 0.99, 0.995]), seed=st.integers(0, 10**6))
@example(q=0.995, seed=0)
def test_sampled_mode_keeps_its_rank(q, seed):
    """Off by more than e with probability 2 exp(-2 m e^2): for e = .0243, m = 10^4 that is 1.5e-5 a draw."""
    x = torch.randn(100_000, generator=torch.Generator().manual_seed(1)).sort().values  # no place is like another
    estimate = ec.quantile_abs(x, q, sample=10_000, generator=torch.Generator().manual_seed(seed))
    rank = (x.abs() <= estimate).double().mean().item()
    assert abs(rank - q) < 0.0243


def test_sampled_mode_in_numpy_and_jax():
    x = np.random.default_rng(0).standard_normal((100, 100)).astype(np.float32)
    for sampled in (
        ec.quantile_abs(x, 0.9, sample=5000, generator=np.random.default_rng(1)),
        ec.quantile_abs(jax.numpy.asarray(x), 0.9, sample=5000, generator=jax.random.key(1)),
    ):
        assert abs((np.abs(x) <= float(sampled)).mean() - 0.9) < 0.035


def peak_copies(x, **options):
    tracemalloc.start()
    ec.quantile_abs(x, 0.995, **options)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / x.nbytes


def test_memory_is_one_copy():
    """The selection copies |x| once; from 2^22 entries on not at all, unless too many of them are alike."""
    gauss = np.random.default_rng(0).standard_normal((1024, 2048)).astype(np.float32)
    with_zero = gauss.copy()
    with_zero[3, 4] = 0
    assert peak_copies(gauss) < 1.05
    assert peak_copies(gauss.T) < 1.05
    assert peak_copies(gauss[:, ::2]) < 1.05
    assert peak_copies(with_zero, nonzero=True) < 1.05
    assert peak_copies(with_zero.reshape(4, 512, 1024), nonzero=True, dim=(-2, -1)) < 1.05
    large = np.tile(gauss.ravel(), 2)
    assert peak_copies(large) < 0.4
    assert peak_copies(np.ones(1 << 22, np.float32)) < 1.3


def test_under_vmap_and_grad():
    x = torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(0))
    each = torch.func.vmap(lambda m: ec.quantile_abs(m, 0.9))(x)
    assert torch.equal(each, ec.quantile_abs(x, 0.9, dim=(-2, -1)))
    soft = ec.Clip(ec.soft_spectral_clip, ec.Scale(2.0))
    for clip in (ec.smooth(0.9), ec.hard(0.9), ec.smooth(0.9, preserve_rms=True), soft):
        torch.testing.assert_close(torch.func.vmap(clip)(x), clip(x), rtol=1e-4, atol=1e-5)
        derivative = torch.func.grad(lambda m, clip=clip: clip(m).sum())(x[0])
        leaf = x[0].clone().requires_grad_()
        clip(leaf).sum().backward()
        torch.testing.assert_close(derivative, leaf.grad, rtol=1e-3, atol=1e-4)


def test_other_kinds_of_tensors():
    x = torch.randn(6, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    assert ec.quantile_abs(x.conj().imag, 0.5) == ec.quantile_abs(x.imag, 0.5)  # a lazy minus sign
    with torch.inference_mode():
        assert ec.quantile_abs(torch.ones(3), 0.5) == 1
    frozen = np.arange(5.0)
    frozen.flags.writeable = False
    assert ec.quantile_abs(frozen, np.array(0.5)) == 2
    assert ec.quantile_abs(frozen.reshape(1, 5), 0.5, dim=[0, 1]) == 2


def test_no_gradient_flows():
    x = torch.randn(5, requires_grad=True)
    assert not ec.quantile_abs(x, 0.5).requires_grad


@pytest.mark.parametrize(
    ("x", "q", "options", "words"),
    [
        (torch.ones(3), 1.5, {}, r"q must be a number in \[0, 1\]"),
        (torch.ones(3), -0.1, {}, "q must be"),
        (torch.ones(3), NAN, {}, "q must be"),
        (torch.ones(3), [], {}, "q must be"),
        (torch.ones(3), "0.5", {}, "q must be"),
        (torch.ones(3), [0.5, 2], {}, "q must be"),
        (torch.ones(0), 0.5, {}, "no entries"),
        (torch.ones(3, 0), 0.5, {"dim": -1}, "no entries"),
        (torch.ones(3), 0.5, {"dim": 1}, "dim must name dimensions"),
        (torch.ones(3, 3), 0.5, {"dim": (0, -2)}, "twice"),
        (torch.ones(3), torch.rand(2, 2), {}, "1-d array"),
        (torch.ones(3), torch.tensor([True]), {}, "q must be"),
        (torch.ones(3), torch.tensor([]), {}, "q must be"),
        (torch.ones(()), 0.5, {"dim": 1}, "dim must name dimensions of x, which has 0"),
        (torch.ones(3), 0.5, {"sample": 0}, "sample must be a whole number >= 1"),
    ],
)
def test_bad_input(x, q, options, words):
    with pytest.raises(ValueError, match=words):
        ec.quantile_abs(x, q, **options)
