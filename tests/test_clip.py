import copy
import pickle

import numpy as np
import pytest
import torch
from libraries import LIBRARIES, make, values

import entryclip as ec


def gaussian(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def papers_snippet(x, q):
    """The listing in the paper's appendix `app:ss`."""
    c = torch.quantile(x.abs(), q)
    return x * torch.exp(-x.abs() / c.clamp(min=1e-12))


@pytest.mark.parametrize("q", [0.9, 0.99, 0.995, 1.0])
def test_smooth_is_the_papers_snippet(q):
    x = gaussian(64, 96)
    torch.testing.assert_close(ec.smooth(q)(x), papers_snippet(x, q))


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_batch_gets_a_threshold_each(library):
    x = np.random.default_rng(0).standard_normal((3, 8, 9)) * np.array([1.0, 10.0, 0.1])[:, None, None]
    for clip in (ec.smooth(0.9), ec.hard(0.9, preserve_rms=True), ec.Clip(ec.soft_spectral_clip, ec.Scale(2.0))):
        together = clip(make(library, "float32", x))
        for i in range(3):
            alone = clip(make(library, "float32", x[i]))
            np.testing.assert_allclose(values(together[i]), values(alone), rtol=1e-5, atol=1e-7)


def test_hard_at_one_is_the_identity():
    x = gaussian(20, 30)
    assert torch.equal(ec.hard(1)(x), x)


@pytest.mark.parametrize(("q", "kept"), [(0.99, 0.57), (0.995, 0.60)])
def test_smooth_shrinkage_shrinks_the_bulk_too(q, kept):
    """The documented side effect, and the option that undoes it."""
    x = gaussian(768, 768)

    def rms(y):
        return float(y.square().mean().sqrt())

    assert rms(ec.smooth(q)(x)) / rms(x) == pytest.approx(kept, abs=0.01)
    assert rms(ec.smooth(q, preserve_rms=True)(x)) == pytest.approx(rms(x), rel=1e-5)
    cosine = torch.nn.functional.cosine_similarity(
        ec.smooth(q)(x).ravel(), ec.smooth(q, preserve_rms=True)(x).ravel(), dim=0
    )
    assert cosine == pytest.approx(1.0, abs=1e-5)  # only the scale changes


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_preserve_rms_at_any_scale(scale):
    x = scale * gaussian(16, 16)
    y = ec.smooth(0.9, preserve_rms=True)(x)
    assert float(torch.linalg.norm((y / scale).double())) == pytest.approx(
        float(torch.linalg.norm((x / scale).double())), rel=1e-5
    )


def test_preserve_rms_where_there_is_nothing_to_keep():
    clip = ec.smooth(0.9, preserve_rms=True)
    assert torch.equal(clip(torch.zeros(3, 3)), torch.zeros(3, 3))
    assert clip(torch.zeros(0, 3)).shape == (0, 3)
    spike = torch.ones(3, 3)
    spike[0, 0] = float("inf")
    assert torch.isfinite(ec.Clip(ec.smooth_shrinkage, ec.Fixed(1.0), preserve_rms=True)(spike)).all()


def test_memory_is_kept_by_the_caller():
    clip = ec.Clip(ec.hard_clip, ec.Running(ec.Quantile(1.0), beta=0.5))
    x = torch.ones(2, 2)
    _, state = clip.update(x, clip.init(x))
    spiked, state = clip.update(100 * x, state)
    assert torch.equal(spiked, x)  # cut at the threshold of the step before
    with pytest.raises(ValueError, match=r"has memory: call clip\.update"):
        clip(x)


def test_prints_compares_pickles_and_copies():
    clip = ec.Clip(ec.smooth_shrinkage, ec.Running(ec.Quantile(0.995), beta=0.9), preserve_rms=True)
    assert repr(clip) == "smooth_shrinkage(running q=0.995, beta=0.9, lag=1, preserve_rms)"
    assert repr(ec.smooth(0.995)) == "smooth_shrinkage(q=0.995)"
    assert pickle.loads(pickle.dumps(clip)) == copy.deepcopy(clip) == clip
    assert ec.smooth(0.99) != ec.smooth(0.995)
    assert repr(ec.smooth(0.99999999)) == "smooth_shrinkage(q=0.99999999)"
    assert len({ec.smooth(0.99), ec.smooth(0.99), ec.hard(0.99)}) == 2


def test_input_is_left_alone_and_autograd_passes():
    x = gaussian(5, 6).requires_grad_()
    before = x.detach().clone()
    ec.smooth(0.9)(x).sum().backward()
    assert torch.equal(x.detach(), before)
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize(
    ("make_clip", "words"),
    [
        (lambda: ec.Clip("hard", ec.Quantile(0.9)), "operator must be a function"),
        (lambda: ec.Clip(ec.hard_clip, 0.9), "expected a threshold rule"),
        (lambda: ec.Clip(ec.hard_clip, ec.Quantile), "expected a threshold rule"),
        (lambda: ec.Clip(ec.hard_clip, ec.Quantile(0.9), 1), "preserve_rms must be True or False"),
    ],
)
def test_bad_input(make_clip, words):
    with pytest.raises(TypeError, match=words):
        make_clip()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("clip", [ec.smooth(0.99), ec.hard(0.9), ec.smooth(0.9, preserve_rms=True)], ids=str)
@pytest.mark.parametrize("finite", [False, True])
def test_in_place_is_the_same_to_the_bit(dtype, clip, finite):
    x = torch.randn(3, 40, 50, generator=torch.Generator().manual_seed(0)).to(dtype)
    x[1] = 0  # threshold 0
    expected, _ = clip.update(x, clip.init(x))
    found, _ = clip.update_(x.clone(), clip.init(x), finite=finite)
    assert torch.equal(found, expected)


def test_in_place_takes_the_limits_where_finite_is_not_promised():
    x = torch.tensor([[1.0, float("inf")], [2.0, 3.0]])
    clip = ec.Clip(ec.smooth_shrinkage, ec.Fixed(1.0))
    found, _ = clip.update_(x, {})
    assert found[0, 1] == 0
