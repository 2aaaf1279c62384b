"""`auto()`: does nothing to healthy noise, takes out anomalies, clips where the noise is heavy, keeps small signals."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from libraries import make, values
from processes import on_processes
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import entryclip as ec
from entryclip.auto_threshold import Auto, gaussian_guard
from entryclip.efficiency import best_threshold, sketch
from entryclip.log_scales import NARROW, log_scales
from entryclip.noise import Cauchy, Contamination


def separable(shape, sd, generator):
    """Gaussian noise whose rows and columns have log-normal scales."""
    x = torch.randn(shape, generator=generator)
    rows = torch.exp(sd * torch.randn(*shape[:-1], 1, generator=generator))
    return x * rows * torch.exp(sd * torch.randn(*shape[:-2], 1, shape[-1], generator=generator))


def cauchy(shape, alpha, generator):
    return Contamination(alpha, 1.0, Cauchy(3.0)).sample(shape, generator)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


def steps(clip, xs):
    """The outputs of a clip on one matrix after the other."""
    state, found = clip.init(xs[0]), []
    for x in xs:
        y, state = clip.update(x, state)
        found.append(y)
    return found, state


@pytest.mark.parametrize("operator", [ec.smooth_shrinkage, ec.hard_clip])
@pytest.mark.parametrize("sd", [0.0, 0.5, 1.0])
def test_gaussian_noise_passes_to_the_bit_whatever_its_scales(sd, operator, generator):
    # 1200 matrices at a false-alarm rate of 1e-3 each: more than 7 alarms have probability 1e-5.
    x = separable((200, 64, 96), sd, generator)
    found, _ = steps(ec.auto(operator), [3.0**k * x.roll(k, 1) for k in range(6)])
    alarms = sum(int((y != 3.0**k * x.roll(k, 1)).flatten(1).any(1).sum()) for k, y in enumerate(found))
    assert alarms <= 7


@pytest.mark.parametrize("sd", [2.0, 3.0])
def test_gaussian_noise_passes_whose_scales_differ_by_any_factor(sd, generator):
    # 240 matrices at a false-alarm rate of 1e-3 each, whose largest scale is 2^15 to 2^40 times the typical one: more
    # than 4 alarms have probability 1e-5.
    rows, columns = (torch.exp(sd * torch.randn(shape, generator=generator)) for shape in ((40, 64, 1), (40, 1, 64)))
    xs = [torch.randn(40, 64, 64, generator=generator) * rows * columns for _ in range(6)]
    found, _ = steps(ec.auto(), xs)
    assert sum(int((y != x).flatten(1).any(1).sum()) for y, x in zip(found, xs, strict=True)) <= 4


@pytest.mark.parametrize("size", [1e4, 1e5, 1e8, 1e15])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_row_that_is_always_far_larger_is_no_anomaly(size, transposed, generator):
    scale = torch.ones(128, 1)
    scale[5] = size
    xs = [torch.randn(128, 96, generator=generator) * scale for _ in range(20)]
    xs = [x.T.contiguous() for x in xs] if transposed else xs
    found, state = steps(ec.auto(), xs)
    assert all(torch.equal(y, x) for y, x in zip(found, xs, strict=True))
    spiked = xs[0].clone()
    spiked[3, 7] = 1e30  # in an ordinary row
    y, _ = ec.auto().update(spiked, state)
    assert [tuple(i) for i in (y != spiked).nonzero().tolist()] == [(3, 7)]


@pytest.mark.parametrize(("shape", "size"), [((6600, 100), 1e4), ((20000, 64), 1e15), ((64, 5000), 1e6)])
def test_one_large_row_among_many_has_its_scale(shape, size, generator):
    """It is no matter of how the means of all rows scatter, which by chance is more than one row adds to."""
    scale = torch.ones(shape[0], 1)
    scale[5] = size
    xs = [torch.randn(shape, generator=generator) * scale for _ in range(3)]
    found, _ = steps(ec.auto(), xs)
    assert all(torch.equal(y, x) for y, x in zip(found, xs, strict=True))


@pytest.mark.parametrize("shape", [(2, 5000), (10000, 3), (8, 512), (32, 32), (40, 5000)])
def test_corruption_from_the_first_step_on_does_not_raise_the_ceiling(shape, generator):
    """In a narrow matrix a few spikes are all of a column."""
    spikes = [torch.rand(shape, generator=generator) < 0.05 for _ in range(6)]
    found, _ = steps(ec.auto(), [torch.randn(shape, generator=generator).where(~each, 1e30) for each in spikes])
    assert max(float(y.abs().max()) for y in found[1:]) < 300


def test_spikes_in_half_of_a_row_and_of_a_column_do_not_raise_the_ceiling(generator):
    spikes = [torch.zeros(128, 96, dtype=torch.bool) for _ in range(20)]
    for spike in spikes[1:]:
        spike[5] = torch.rand(96, generator=generator) < 0.5
        spike[:, 7] |= torch.rand(128, generator=generator) < 0.5
    found, _ = steps(ec.auto(), [torch.randn(128, 96, generator=generator).where(~each, 1e30) for each in spikes])
    assert max(float(y.abs().max()) for y in found) < 1e4


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5])
def test_spikes_in_up_to_half_of_a_row_do_not_raise_the_ceiling(share, generator):
    """Step after step the same row has spikes: they stay anomalies, and get no scale of their own."""
    clean = [torch.randn(128, 96, generator=generator) for _ in range(20)]
    spikes = [torch.zeros(128, 96, dtype=torch.bool) for _ in clean]
    for spike in spikes[1:]:
        spike[5] = torch.rand(96, generator=generator) < share
    found, _ = steps(ec.auto(), [x.where(~spike, 1e30) for x, spike in zip(clean, spikes, strict=True)])
    assert max(float(y.abs().max()) for y in found) < 1e4


@pytest.mark.parametrize("shape", [(2, 768), (768, 2), (10, 512), (512, 9), (31, 200)])
@pytest.mark.parametrize("operator", [ec.smooth_shrinkage, ec.hard_clip])
def test_narrow_matrices_are_guarded_only(shape, operator, generator):
    """Scales estimated from a few entries make Gaussian ones look heavy-tailed: no clip may follow from that."""
    rows, columns = (torch.randn(20, side, generator=generator).exp() for side in shape)
    scales = rows[:, :, None] * columns[:, None]
    xs = [scales * torch.randn(scales.shape, generator=generator) for _ in range(12)]
    found, state = steps(ec.auto(operator), xs)
    assert not Auto().decide(state["sketch"], operator, shape).clips.any()
    touched = torch.stack([y != x for x, y in zip(xs, found, strict=True)])
    assert touched.float().mean() < 1e-3  # with a clip it was up to 85 % of the entries


def test_entries_of_a_vector_are_compared_with_each_other(generator):
    """A vector has neither rows nor columns: Gaussian entries pass, and heavy-tailed ones are clipped."""
    gaussian = [torch.randn(20_000, generator=generator) for _ in range(5)]
    found, _ = steps(ec.auto(), gaussian)
    assert sum(int((y != x).sum()) for x, y in zip(gaussian, found, strict=True)) <= 1
    heavy = [cauchy((20_000,), 0.05, generator) for _ in range(5)]
    for x, y in zip(heavy, steps(ec.auto(), heavy)[0], strict=True):
        assert y.abs().max() < 0.02 * x.abs().max()
    w = torch.nn.Parameter(torch.zeros(20_000))
    optimizer = ec.optim.SGD([w], lr=1.0, clip_vectors=True, grad=ec.auto())
    w.grad = heavy[0]
    optimizer.step()
    assert w.detach().abs().max() < 0.02 * heavy[0].abs().max()


def test_gaussian_noise_has_no_gain_on_the_narrowest_matrices_that_are_clipped(generator):
    """The gain of what is estimated from `NARROW` entries stays below the margin, so that wider ones are safe."""
    for shape in ((NARROW, 64), (512, NARROW)):
        rows, columns = (torch.randn(20, side, generator=generator).mul(2).exp() for side in shape)
        scales = rows[:, :, None] * columns[:, None]
        _, state = steps(ec.auto(), [scales * torch.randn(scales.shape, generator=generator) for _ in range(12)])
        guard = gaussian_guard(*shape, 1e-3)
        for operator in (ec.smooth_shrinkage, ec.hard_clip):
            assert float(best_threshold(state["sketch"], operator, 0.02, guard).gain.max()) < 1.06  # the margin is 1.1


def test_it_prints_what_was_changed():
    assert str(Auto()) == "auto"
    assert str(Auto(margin=2, false_alarms=1e-5)) == "auto, margin=2, false_alarms=1e-05"


@pytest.mark.parametrize("size", [30.0, 1e6, 3e38, np.inf])
def test_one_anomaly_is_bounded_and_nothing_else_changes(size, generator):
    x = separable((128, 64), 1.0, generator)
    place = (5, 7)
    scale = float(log_scales(x).product()[place])
    spiked = x.clone()
    spiked[place] = min(size * scale, 3e38) if size < np.inf else size
    clip = ec.auto()
    _, state = clip.update(x.roll(3, 0), clip.init(x))
    y, _ = clip.update(spiked, state)
    assert [tuple(i) for i in (y != spiked).nonzero().tolist()] == [place]
    # A spike raises its own bound by little: by 12 octaves / 64 in its row and 12 / 128 in its column, a factor 1.22.
    assert float(y[place]) < 1.25 * gaussian_guard(128, 64, 1e-3) * scale


@pytest.mark.parametrize("operator", [ec.smooth_shrinkage, ec.hard_clip])
@pytest.mark.parametrize("alpha", [0.05, 0.5, 1.0])
def test_a_small_signal_passes_heavy_noise_as_it_is(alpha, operator, generator):
    """The learning rate of an unclipped run stays right: the mean output moves as the signal does."""
    signal = 0.05 * torch.randn(48, 48, generator=generator)
    noise = [cauchy((48, 48), alpha, generator) for _ in range(400)]
    with_signal, _ = steps(ec.auto(operator), [signal + each for each in noise])
    mean = torch.stack(with_signal[20:]).mean(0)
    slope = float((mean * signal).sum() / signal.square().sum())
    assert abs(slope - 1) < 0.25  # four standard errors at alpha = 1


@pytest.mark.parametrize("alpha", [0.01, 0.1, 0.5, 1.0])
def test_the_threshold_is_as_good_as_the_best(alpha, generator):
    """After some steps its efficiency is within 5 % of the best threshold's, found from 10^6 entries."""
    oracle = sketch(cauchy((1000, 1000), alpha, generator))
    best = best_threshold(oracle, ec.smooth_shrinkage, 0.0)
    clip = ec.auto()
    _, state = steps(clip, [cauchy((64, 64), alpha, generator) for _ in range(40)])
    probe = cauchy((64, 64), alpha, generator)
    threshold = clip.threshold(probe, state)
    unit = float(threshold.median())
    x = cauchy((1000, 1000), alpha, generator)
    slope = ((1 - x.abs() / unit) * torch.exp(-x.abs() / unit)).mean()
    square = (x * torch.exp(-x.abs() / unit)).square().mean()
    c = float(best.threshold)
    best_slope = ((1 - x.abs() / c) * torch.exp(-x.abs() / c)).mean()
    best_square = (x * torch.exp(-x.abs() / c)).square().mean()
    assert slope**2 / square > 0.95 * best_slope**2 / best_square


def test_a_batch_is_its_matrices_one_by_one(generator):
    xs = [cauchy((3, 40, 60), alpha, generator) for alpha in (0.0, 0.2, 0.2)]
    together, _ = steps(ec.auto(), xs)
    for i in range(3):
        alone, _ = steps(ec.auto(), [x[i] for x in xs])
        for a, b in zip(together, alone, strict=True):
            torch.testing.assert_close(a[i], b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("alpha", [0.0, 0.3])
def test_the_libraries_agree(alpha, generator):
    xs = [cauchy((40, 50), alpha, generator).numpy() for _ in range(4)]
    reference, _ = steps(ec.auto(), [make("torch", "float32", x) for x in xs])
    for library in ("numpy", "jax"):
        found, _ = steps(ec.auto(), [make(library, "float32", x) for x in xs])
        for a, b in zip(found, reference, strict=True):
            np.testing.assert_allclose(values(a), values(b), rtol=2e-4, atol=1e-5)


def test_under_jit(generator):
    clip = ec.auto()
    x = jnp.asarray(cauchy((40, 50), 0.3, generator).numpy())
    state = clip.init(x)
    np.testing.assert_allclose(jax.jit(clip.update)(x, state)[0], clip.update(x, state)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_precisions(dtype, generator):
    x = cauchy((40, 50), 0.3, generator).clamp(-6e4, 6e4)
    clip = ec.auto()
    y, _ = clip.update(x.to(dtype), clip.init(x))
    assert y.dtype == dtype
    torch.testing.assert_close(y.float(), clip.update(x.to(dtype).float(), clip.init(x))[0], rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("shape", [(0, 4), (2, 0, 3), (5,), (), (1, 1), (1, 300)])
def test_odd_shapes_and_zeros(shape):
    clip = ec.auto()
    for x in (torch.zeros(shape), torch.ones(shape)):
        y, state = clip.update(x, clip.init(x))
        assert torch.equal(y, x)
        assert clip.update(torch.zeros(shape), state)[1]["looks"] == state["looks"]


def test_rows_without_gradient_do_not_count(generator):
    """An embedding whose rows are mostly 0: those that are not pass as they are."""
    x = torch.zeros(1000, 64)
    x[::50] = torch.randn(20, 64, generator=generator) * torch.logspace(-3, 3, 20)[:, None]
    clip = ec.auto()
    assert torch.equal(clip.update(x, clip.init(x))[0], x)


def test_a_few_odd_entries_before_the_first_gradient_do_not_hold_it_back(generator):
    """Output maps start at zero, and so do the gradients of what feeds them."""
    clip = ec.auto()
    x = torch.zeros(64, 64)
    x[::7, ::9] = 2.0**-111
    _, state = clip.update(x, clip.init(x))
    x = 0.01 * torch.randn(64, 64, generator=generator)
    assert torch.equal(clip.update(x, state)[0], x)


@pytest.mark.parametrize("octaves", [7, 13, 30, 100])
@pytest.mark.parametrize("sd", [0.0, 0.3])
def test_a_matrix_that_grows_as_a_whole_is_no_anomaly(octaves, sd, generator):
    """Gradients behind a map that starts at 0 grow by any factor from step to step: their size is learnt anew."""
    small = separable((64, 96), sd, generator) * 2.0**-octaves
    large = [separable((64, 96), sd, generator) for _ in range(3)]
    found, state = steps(ec.auto(), [small, *large])
    changed = [float((y != x).float().mean()) for y, x in zip(found, [small, *large], strict=True)]
    assert changed == [0.0, 0.0, 0.0, 0.0] or (sd > 0 and changed[1] < 2e-3 and changed[2:] == [0.0, 0.0])
    assert float(best_threshold(state["sketch"], ec.smooth_shrinkage, 0.02).gain) < 1.05
    large[0][3, 5] = 1e6
    y, _ = ec.auto().update(large[0], state)
    assert [tuple(i) for i in (y != large[0]).nonzero().tolist()] == [(3, 5)]


@pytest.mark.parametrize("share", [0.001, 0.01, 0.1])
def test_spikes_in_a_matrix_that_grows_are_cut(share, generator):
    """The step in which a matrix outgrows what is known of it is guarded too: one entry can spoil a momentum."""
    small = torch.randn(64, 96, generator=generator) * 2.0**-30
    large, spikes = torch.randn(64, 96, generator=generator), torch.rand(64, 96, generator=generator) < share
    (_, y), _ = steps(ec.auto(), [small, large.where(~spikes, 1e30)])
    # The spikes raise the mean logarithm, and with it the bound, by 100 octaves times their share.
    assert float(y[spikes].max()) < 10 * 2 ** (110 * share)
    assert torch.equal(y[~spikes], large[~spikes])


def test_spikes_among_zeros_do_not_count_as_growth(generator):
    """After a full gradient one with few entries that are not 0, all of them spikes: bounded by what is known."""
    clip, x = ec.auto(), torch.randn(64, 96, generator=generator)
    _, state = clip.update(x, clip.init(x))
    few = torch.zeros(64, 96)
    few[::7, ::9] = 1e30
    y, _ = clip.update(few, state)
    assert float(y.max()) < 1e6


@pytest.mark.parametrize("share", [0.01, 0.1, 0.3])
def test_no_share_of_spikes_counts_as_growth(share, generator):
    """Spikes are cut however many there are, up to a third of the entries: they do not let each other pass."""
    clip = ec.auto()
    x = torch.randn(64, 96, generator=generator)
    _, state = clip.update(x.roll(1, 0), clip.init(x))
    spikes = torch.rand(64, 96, generator=generator) < share
    y, _ = clip.update(x.where(~spikes, 1e30), state)
    assert float(y[spikes].max()) < 1e6


def test_a_few_entries_say_nothing_of_the_variance(generator):
    """Two odd entries before the first gradient leave the scales of its rows and columns as they are without them."""
    clip, x = ec.auto(), torch.zeros(64, 96)
    x[3, 5], x[40, 2] = 2.0, 2.0**-100
    _, state = clip.update(x, clip.init(x))
    gradient = separable((64, 96), 1.0, generator)
    _, after = clip.update(gradient, state)
    _, alone = clip.update(gradient, clip.init(gradient))
    difference = after["sketch"] - clip.rule.beta * state["sketch"] - alone["sketch"]
    assert float(difference.abs().max()) < 1e-3


def test_the_rows_of_a_large_matrix_take_turns(generator):
    """A sketch sees every row of a large matrix after enough steps: heavy noise in some of them is found."""
    x = torch.randn(2048, 256, generator=generator)
    x[1::8] = cauchy((256, 256), 0.5, generator)
    clip = ec.auto()
    _, state = steps(clip, [x] * 8)
    assert float(best_threshold(state["sketch"], ec.smooth_shrinkage, 0.02).gain) > 100


@pytest.mark.parametrize("stage", ["grad", "post"])
def test_a_run_goes_on_from_a_checkpoint_to_the_same_bits(stage, generator):
    gradients = [cauchy((3, 24, 60), 0.2, generator) for _ in range(8)]

    def make_optimizer():
        w = torch.nn.Parameter(torch.zeros(3, 24, 60))
        return w, ec.optim.AdamW([w], lr=1e-2, **{"post": None, stage: ec.auto()})

    def run(w, optimizer, some):
        for g in some:
            w.grad = g.clone()
            optimizer.step()

    w, optimizer = make_optimizer()
    run(w, optimizer, gradients[:4])
    saved, weights = copy.deepcopy(optimizer.state_dict()), w.detach().clone()
    run(w, optimizer, gradients[4:])
    again, other = make_optimizer()
    other.load_state_dict(saved)
    with torch.no_grad():
        again.copy_(weights)
    run(again, other, gradients[4:])
    assert torch.equal(w, again)


def test_compiled(generator):
    clip = ec.auto()
    x = cauchy((64, 80), 0.3, generator)
    state = clip.init(x)
    compiled = torch.compile(clip.update, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        y, after = compiled(x, state)
        expected, state = clip.update(x, state)
        torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(after["sketch"], state["sketch"])


def check_sharded(rank):
    mesh = init_device_mesh("cpu", (2,))
    generator = torch.Generator().manual_seed(3)
    for shape, alpha in (((40, 30), 0.3), ((3, 20, 64), 0.0), ((2, 7, 300), 0.3), ((512, 256), 0.3)):
        xs = [cauchy(shape, alpha, generator) for _ in range(3)]
        expected, state = steps(ec.auto(), xs)
        for placement in (*(Shard(i) for i in range(len(shape))), Replicate()):
            found, sharded = steps(ec.auto(), [distribute_tensor(x, mesh, [placement]) for x in xs])
            for a, b in zip(found, expected, strict=True):
                torch.testing.assert_close(a.full_tensor(), b, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(sharded["sketch"], state["sketch"])


def test_sharded(tmp_path):
    on_processes(2, check_sharded, tmp_path)


@pytest.mark.parametrize(
    "options", [{"margin": 0.9}, {"margin": np.nan}, {"beta": 1.0}, {"false_alarms": 0.0}, {"margin": "2"}]
)
def test_bad_options(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        ec.Auto(**options)


def test_only_for_operators_with_a_slope():
    with pytest.raises(ValueError, match="hard_clip or smooth_shrinkage"):
        ec.Clip(ec.soft_threshold, ec.Auto())
    with pytest.raises(ValueError, match="preserve_rms"):
        ec.Clip(ec.hard_clip, ec.Auto(), preserve_rms=True)
    with pytest.raises(TypeError, match="in a Clip"):
        ec.Auto()(torch.ones(2, 2))
