"""The neighbours' methods against their formulas; the paper's claim; convergence of everything."""

import pytest
import torch

import entryclip as ec
from entryclip import optim


def gradients(shape, steps, seed=0):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=g) for _ in range(steps)]


def test_spectra_bounds_the_update():
    w = torch.nn.Parameter(torch.zeros(16, 24))
    optimizer = optim.spectra([w], lr=0.1, threshold=0.5, weight_decay=0.0)
    for lr, g in zip((0.1, 0.05), gradients((16, 24), 2), strict=True):
        optimizer.param_groups[0]["lr"] = lr
        before, w.grad = w.detach().clone(), g
        optimizer.step()
        largest = torch.linalg.matrix_norm((before - w.detach()) / lr, 2)
        threshold = 0.5 * lr / 0.1
        assert 0.9 * threshold < largest <= threshold * (1 + 1e-3)


def test_spectra_with_a_tensor_as_learning_rate():
    """Its shape does not matter, also with vectors that are clipped."""
    results = []
    for lr in (0.1, torch.tensor([0.1]), torch.tensor([[0.1]])):
        params = [torch.nn.Parameter(torch.ones(4, 6)), torch.nn.Parameter(torch.ones(6))]
        optimizer = optim.spectra(params, lr=lr, threshold=0.5, clip_vectors=True)
        for p in params:
            p.grad = gradients(p.shape, 1)[0]
        optimizer.step()
        assert len(optimizer.clip_report()) == 2
        results.append(params)
    for each in results[1:]:
        for p, q in zip(each, results[0], strict=True):
            torch.testing.assert_close(p, q)


def test_spectra_with_another_number_of_threads():
    """Products of matrices add in another order with two threads: equal up to rounding, as docs/optimizers.md says."""
    ends, threads = [], torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            w = torch.nn.Parameter(torch.zeros(256, 512))
            optimizer = optim.spectra([w], lr=0.01, threshold=0.5)
            for w.grad in gradients((256, 512), 3):
                optimizer.step()
            ends.append(w.detach())
    finally:
        torch.set_num_threads(threads)
    assert torch.linalg.norm(ends[1] - ends[0]) <= 1e-5 * torch.linalg.norm(ends[0])


def test_root_is_the_momentum_less_its_soft_threshold():
    w = torch.nn.Parameter(torch.zeros(8, 8))
    optimizer = optim.root([w], lr=1.0, sign="svd", weight_decay=0.0)
    w.grad = g = gradients((8, 8), 1)[0]
    optimizer.step()
    m = g.lerp(0.05 * g, 0.95)
    c = torch.quantile(m.abs(), 0.9)
    torch.testing.assert_close(w.data, -ec.msign(m - ec.soft_threshold(m, c), "svd"), rtol=1e-5, atol=1e-5)


def test_adamuon_formula():
    w = torch.nn.Parameter(torch.zeros(6, 9))
    optimizer = optim.AdaMuon([w], lr=0.1, weight_decay=0.0, nesterov=False, beta2=0.9)
    m, v, expected = torch.zeros(6, 9), torch.zeros(6, 9), torch.zeros(6, 9)
    for g in gradients((6, 9), 5):
        w.grad = g
        optimizer.step()
        m = 0.95 * m + 0.05 * g
        o = ec.msign(torch.sign(m))
        v = 0.9 * v + 0.1 * o * o
        u = o / (v.sqrt() + 1e-8)
        expected -= 0.1 * 0.2 * u / u.square().mean().sqrt()
    torch.testing.assert_close(w.data, expected, rtol=1e-4, atol=1e-5)


MAKERS = {
    "sgd": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, post=ec.hard(0.9)),
    "adamw": lambda p: optim.AdamW(p, lr=0.2, weight_decay=0.0),
    "muon": lambda p: optim.Muon(p, lr=0.05, weight_decay=0.0),
    "spectra": lambda p: optim.spectra(p, lr=0.05, weight_decay=0.0),
    "root": lambda p: optim.root(p, lr=0.05, weight_decay=0.0),
    "adamuon": lambda p: optim.AdaMuon(p, lr=0.1, weight_decay=0.0),
    "spectral_gd": lambda p: optim.spectral_gd(p, lr=0.05, pre=ec.hard(0.9)),
}


@pytest.mark.parametrize("name", MAKERS)
def test_converges_on_a_quadratic(name):
    target = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    w = torch.nn.Parameter(torch.zeros(8, 8))
    optimizer = MAKERS[name]([w])
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 300)
    for _ in range(300):
        optimizer.zero_grad()
        (0.5 * (w - target).square().sum()).backward()
        optimizer.step()
        scheduler.step()
    assert (w - target).square().mean() < 1e-2 * target.square().mean()


@pytest.mark.parametrize("name", ["sgd", "adamw", "muon"])
def test_learns_with_a_small_network(name):
    g = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    x = torch.randn(128, 8, generator=g)
    y = torch.sin(x @ torch.randn(8, 1, generator=g))
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    optimizers = [MAKERS[name](matrices), optim.AdamW(vectors, lr=0.01)]
    losses = []
    for _ in range(200):
        loss = (model(x) - y).square().mean()
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]


@pytest.mark.parametrize("clip", [ec.hard(0.9), ec.smooth(0.9)], ids=str)
def test_the_papers_claim_on_a_contaminated_quadratic(clip):
    """5 % Cauchy noise in the gradient: without a clip gradient descent is thrown off, with one it converges."""
    target = torch.randn(32, 32, generator=torch.Generator().manual_seed(0))
    noise = torch.Generator().manual_seed(1)
    results = {}
    for name, post in (("none", None), ("clipped", clip)):
        w = torch.nn.Parameter(torch.zeros(32, 32))
        optimizer = optim.SGD([w], lr=0.05, post=post)
        noise.manual_seed(1)
        for _ in range(300):
            heavy = torch.zeros(32, 32).cauchy_(0, 3, generator=noise)
            spikes = heavy * (torch.rand(32, 32, generator=noise) < 0.05)
            w.grad = w.detach() - target + spikes
            optimizer.step()
        results[name] = float((w.detach() - target).square().mean())
    assert results["clipped"] < 0.2
    assert results["none"] > 100 * results["clipped"]
