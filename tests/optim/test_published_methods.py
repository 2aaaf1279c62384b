"""Each published method against a plain implementation of the formulas in its paper, over several steps."""

import functools
import io
import math

import pytest
import torch

from entryclip import msign
from entryclip.optim import build, presets
from entryclip.optim.norm_clip import total_norm
from entryclip.optim.norm_rules import MaxNorm, ZScore
from entryclip.testing import check_optimizer

SHAPES = [(6, 9), (9, 6), (7,)]  # the last is a vector
ADAM = {"betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
MAKERS = {  # short warm-ups and resets, so that a few steps see every part of a method
    "adagc": functools.partial(presets.adagc, warmup=4, absolute=2.0),
    "zclip": functools.partial(presets.zclip, warmup=4),
    "spectral_clipping": presets.spectral_clipping,
    "StableAdamW": presets.StableAdamW,
    "SPAM": functools.partial(presets.SPAM, threshold=4.0, reset=7, warmup=3, clip_after=2),
    "StableSPAM": functools.partial(presets.StableSPAM, reset=7),
    "NorMuon": presets.NorMuon,
}


def gradients(shapes, steps, seed=0):
    """Gaussian gradients, every fifth step a spike: ten times larger, and one entry a thousand times."""
    g = torch.Generator().manual_seed(seed)
    for step in range(steps):
        found = [torch.randn(shape, generator=g) for shape in shapes]
        if step % 5 == 4:
            found = [10 * x for x in found]
            found[0][0, 0] *= 100
        yield found


def parameters(shapes):
    g = torch.Generator().manual_seed(1)
    return [torch.nn.Parameter(torch.randn(shape, generator=g)) for shape in shapes]


def run(make, steps=12, shapes=SHAPES):
    params = parameters(shapes)
    optimizer = make(params)
    for found in gradients(shapes, steps):
        for p, g in zip(params, found, strict=True):
            p.grad = g
        optimizer.step()
    return [p.detach().double() for p in params]


class Adam:
    """AdamW of one tensor in fp64, by its formulas."""

    def __init__(self, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, lr=0.1):
        self.betas, self.eps, self.decay, self.lr = betas, eps, weight_decay, lr
        self.m = self.v = 0.0
        self.t = 0

    def update(self, g):
        (b1, b2), self.t = self.betas, self.t + 1
        self.m, self.v = b1 * self.m + (1 - b1) * g, b2 * self.v + (1 - b2) * g * g
        return self.m / (1 - b1**self.t) / ((self.v / (1 - b2**self.t)).sqrt() + self.eps)

    def step(self, w, g, factor=1.0):
        return (1 - self.lr * self.decay) * w - self.lr * factor * self.update(g)


def reference(rule, steps=12, shapes=SHAPES, **options):
    """Run AdamW on what `rule(gradients) -> gradients` makes of the gradients of a step."""
    ws, adams = [p.detach().double() for p in parameters(shapes)], [Adam(**options) for _ in shapes]
    for found in gradients(shapes, steps):
        clipped = rule([g.double() for g in found])
        ws = [adam.step(w, g) for adam, w, g in zip(adams, ws, clipped, strict=True)]
    return ws


def same(found, wanted):
    for w, expected in zip(found, wanted, strict=True):
        torch.testing.assert_close(w, expected, rtol=1e-5, atol=2e-6)


def norm_of(gs):
    return math.sqrt(sum(float(g.square().sum()) for g in gs))


def test_adagc():
    """arXiv:2502.11034: global clipping in the warm-up, then each norm against the mean of its clipped past."""
    gammas, steps = {}, 0

    def rule(gs):
        nonlocal steps
        steps += 1
        h = min(2.0 / norm_of(gs), 1.0)
        clipped = []
        for i, g in enumerate(gs):
            if steps <= 4:
                g = h * g
                gammas[i] = min(gammas.get(i, math.inf), float(g.norm()))
            else:
                g = min(1.04 * gammas[i] / float(g.norm()), 1.0) * g
                gammas[i] = 0.99 * gammas[i] + 0.01 * float(g.norm())
            clipped.append(g)
        return clipped

    same(run(lambda p: presets.adagc(p, lr=0.1, warmup=4, absolute=2.0, **ADAM)), reference(rule))


@pytest.mark.parametrize(("threshold", "alpha"), [(2.5, 0.97), (0.5, 0.5)])
def test_zclip(threshold, alpha):
    """arXiv:2504.02507: a norm of z-score z above the threshold becomes mean + threshold^2 / z * deviation."""
    norms, mean, variance = [], 0.0, 0.0

    def rule(gs):
        nonlocal mean, variance
        norm = norm_of(gs)
        if len(norms) < 4:
            norms.append(norm)
            mean = sum(norms) / len(norms)
            variance = sum((n - mean) ** 2 for n in norms) / len(norms)
            return gs
        z = (norm - mean) / math.sqrt(variance)
        kept = mean + threshold**2 / z * math.sqrt(variance) if z > threshold else norm
        mean = alpha * mean + (1 - alpha) * kept
        variance = alpha * variance + (1 - alpha) * (kept - mean) ** 2
        return [kept / norm * g for g in gs]

    same(run(lambda p: presets.zclip(p, lr=0.1, threshold=threshold, alpha=alpha, warmup=4, **ADAM)), reference(rule))


def test_spectral_clipping():
    """arXiv:2605.11838: singular values cut at the bias-corrected mean of the largest of the steps before."""
    means, steps = {}, 0

    def rule(gs):
        nonlocal steps
        clipped = []
        for i, g in enumerate(gs):
            if g.ndim == 2:
                u, s, vh = torch.linalg.svd(g, full_matrices=False)
                limit = means[i] / (1 - 0.9**steps) if steps else float(s[0])
                means[i] = 0.9 * means.get(i, 0.0) + 0.1 * float(s[0])
                g = (u * s.clamp(max=limit)) @ vh
            clipped.append(g)
        steps += 1
        return clipped

    same(run(lambda p: presets.spectral_clipping(p, lr=0.1, **ADAM)), reference(rule))


def test_stable_adamw():
    """arXiv:2304.13013 with beta-hat in place of the bias correction, as the paper writes it."""
    ws = [p.detach().double() for p in parameters(SHAPES)]
    ms, vs = [0.0] * 3, [0.0] * 3
    for t, found in enumerate(gradients(SHAPES, 12), 1):
        hats = [b * (1 - b ** (t - 1)) / (1 - b**t) for b in ADAM["betas"]]
        for i, g in enumerate(found):
            g = g.double()
            ms[i], vs[i] = hats[0] * ms[i] + (1 - hats[0]) * g, hats[1] * vs[i] + (1 - hats[1]) * g * g
            rms = (g * g / vs[i].clamp(min=1e-16)).mean().sqrt()
            rate = 0.1 / max(1.0, float(rms))
            ws[i] = (1 - 0.1 * 0.1) * ws[i] - rate * ms[i] / (vs[i].sqrt() + 1e-8)
    same(run(lambda p: presets.StableAdamW(p, lr=0.1, **ADAM)), ws)


def test_spam():
    """arXiv:2501.06842 as in the authors' program: reset at every 7th step, spikes cut from two steps later on."""
    ws, adams = [p.detach().double() for p in parameters(SHAPES)], [Adam() for _ in SHAPES]
    cut = 0
    for t, found in enumerate(gradients(SHAPES, 18), 1):
        since = t % 7
        factor = 1 - 0.99 * (1 + math.cos(math.pi * since / 4)) / 2 if t >= 7 and since < 3 else 1.0
        for i, (adam, g) in enumerate(zip(adams, found, strict=True)):
            g = g.double()
            if since == 0:
                adam.m = adam.v = torch.zeros_like(g)
            if since >= 2:
                spike = g * g > 4.0 * adam.v
                cut += int(spike.sum())
                g = torch.where(spike, g.sign() * (4.0 * adam.v).sqrt(), g)
            ws[i] = adam.step(ws[i], g, factor)
    assert cut > 50
    options = {"threshold": 4.0, "reset": 7, "warmup": 3, "clip_after": 2}
    same(run(lambda p: presets.SPAM(p, lr=0.1, **ADAM, **options), 18), ws)


def test_stable_spam():
    """arXiv:2502.17055: AdaClip, AdaGN, and a reset that begins Adam's bias correction anew."""
    ws, adams = [p.detach().double() for p in parameters(SHAPES)], [Adam() for _ in SHAPES]
    tops, means, squares = [0.0] * 3, [0.0] * 3, [0.0] * 3
    for t, found in enumerate(gradients(SHAPES, 12), 1):
        for i, (adam, g) in enumerate(zip(adams, found, strict=True)):
            g = g.double()
            top = g.abs().max()
            tops[i] = 0.999 * tops[i] + 0.001 * top
            limit = tops[i] / (1 - 0.999**t)
            g = torch.where(g.abs() > limit, g / top * limit, g)
            norm = g.norm()
            means[i], squares[i] = 0.7 * means[i] + 0.3 * norm, 0.9 * squares[i] + 0.1 * norm**2
            g = g / norm * (means[i] / (1 - 0.7**t)) / ((squares[i] / (1 - 0.9**t)).sqrt() + 1e-8)
            if t % 7 == 0:
                adam.m = adam.v = torch.zeros_like(g)
                adam.t = 0
            ws[i] = adam.step(ws[i], g)
    same(run(lambda p: presets.StableSPAM(p, lr=0.1, reset=7, **ADAM)), ws)


@pytest.mark.parametrize("nesterov", [False, True])
def test_normuon(nesterov):
    """arXiv:2510.05491: rows of the matrix sign over their running root mean squares, scaled to 0.2 sqrt(m n)."""
    shapes = SHAPES[:2]
    ws, ms = [p.detach().double() for p in parameters(shapes)], [torch.zeros(shape).double() for shape in shapes]
    vs = [torch.zeros(shape[0], 1).double() for shape in shapes]
    for found in gradients(shapes, 6):
        for i, g in enumerate(found):
            g = g.double()
            ms[i] = 0.95 * ms[i] + 0.05 * g
            o = msign(0.95 * ms[i] + 0.05 * g if nesterov else ms[i], "svd")
            vs[i] = 0.95 * vs[i] + 0.05 * (o * o).mean(1, keepdim=True)
            u = o / (vs[i].sqrt() + 1e-10)
            ws[i] = (1 - 0.1 * 0.1) * ws[i] - 0.1 * 0.2 * math.sqrt(u.numel()) / u.norm() * u
    make = functools.partial(presets.NorMuon, lr=0.1, weight_decay=0.1, nesterov=nesterov, sign="svd")
    same(run(make, 6, shapes), ws)


def test_spectra():
    """arXiv:2603.14315: AdamW's update U becomes (I + U U^T / c^2)^(-1/2) U, c in proportion to the learning rate."""
    shapes, (lr, c) = SHAPES[:2], (0.1, 1.5)

    def clipped(u, c):
        w, q = torch.linalg.eigh(torch.eye(len(u), dtype=u.dtype) + u @ u.T / c**2)
        return q @ torch.diag(w.rsqrt()) @ q.T @ u

    ws, adams = [p.detach().double() for p in parameters(shapes)], [Adam() for _ in shapes]
    params = parameters(shapes)
    optimizer = presets.spectra(params, lr, threshold=c, **ADAM)
    for step, gs in enumerate(gradients(shapes, 8)):
        factor = 1.0 if step < 4 else 0.25  # the schedule
        optimizer.param_groups[0]["lr"] = factor * lr
        for i, (p, g) in enumerate(zip(params, gs, strict=True)):
            p.grad = g
            ws[i] = (1 - factor * lr * 0.1) * ws[i] - factor * lr * clipped(adams[i].update(g.double()), factor * c)
        optimizer.step()
    same([p.detach().double() for p in params], ws)


@pytest.mark.parametrize("name", MAKERS)
def test_conformance(name):
    """AdaGC clips vectors, too, as published; what it is given to refuse as flattened would be one."""
    check_optimizer(functools.partial(MAKERS[name], **({"clip_vectors": False} if name == "adagc" else {})))


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_goes_on_from_a_checkpoint_in_two_groups(name, dtype):
    """To the bit, whatever part of a warm-up or of a reset the checkpoint falls into, and also in half precision."""
    shapes = SHAPES[:2] if name == "NorMuon" else SHAPES

    def make():
        params = [torch.nn.Parameter(p.detach().to(dtype)) for p in parameters(shapes)]
        return params, MAKERS[name]([{"params": params[:1]}, {"params": params[1:], "lr": 0.02}], lr=0.1)

    for stop in (3, 7):
        (params, optimizer), (others, resumed) = make(), make()
        for step, found in enumerate(gradients(shapes, 12)):
            if step == stop:
                file = io.BytesIO()
                torch.save(optimizer.state_dict(), file)
                resumed.load_state_dict(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
                for p, q in zip(params, others, strict=True):
                    q.data.copy_(p.data)
            for each, stepped in ((params, True), (others, step >= stop)):
                for p, g in zip(each, found, strict=True):
                    p.grad = g.to(dtype) if stepped else None
            optimizer.step()
            if step >= stop:
                resumed.step()
        assert all(torch.equal(p, q) for p, q in zip(params, others, strict=True))


def test_the_norm_is_over_all_groups_and_a_missing_gradient_changes_nothing_else():
    """One group's parameter has no gradient for a while: the memory of both groups stays the same."""
    a, b = torch.nn.Parameter(torch.zeros(3, 3)), torch.nn.Parameter(torch.zeros(4))
    optimizer = presets.zclip([{"params": [a]}, {"params": [b]}], warmup=2)
    for step in range(5):
        a.grad, b.grad = torch.ones(3, 3), None if step % 2 else torch.full((4,), 2.0)
        optimizer.step()
    first, second = (
        {key: float(group[f"norm_{key}"]) for key in ("mean", "variance", "steps")} for group in optimizer.param_groups
    )
    assert first == second
    assert first["steps"] == 5
    optimizer = presets.zclip([a], warmup=2)
    optimizer.add_param_group({"params": [b]})
    assert optimizer.param_groups[1]["norm"] == ZScore(warmup=2)


def test_equal_norms_tell_nothing_of_what_a_spike_is():
    rule, limits = ZScore(warmup=2), []
    memory = rule.init(torch.zeros(()))
    for norm in (1.0, 1.0, 5.0):
        limit, memory = rule.limit(torch.tensor(norm), memory)
        limits.append(float(limit))
    assert limits == [math.inf] * 3
    assert float(memory["variance"]) > 0


def test_max_norm_is_torchs_gradient_clipping():
    params, others = parameters(SHAPES), parameters(SHAPES)
    ours = build(
        torch.nn.ParameterList(params), "adamw", lr=0.1, roles={r: {"norm": MaxNorm(0.5)} for r in ("hidden", "vector")}
    )
    theirs = build(torch.nn.ParameterList(others), "adamw", lr=0.1)
    for found in gradients(SHAPES, 3):
        for p, q, g in zip(params, others, found, strict=True):
            p.grad, q.grad = g, g.clone()
        torch.nn.utils.clip_grad_norm_(others, 0.5)
        ours.step()
        theirs.step()
    for p, q in zip(params, others, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
    assert float(total_norm([p.grad for p in params])) > 1  # the gradients themselves are as they were


def test_without_a_spike_the_norm_rule_leaves_adamw_to_the_bit():
    def plain(p):
        return presets.AdamW(p, lr=0.1, post=None)

    for found, wanted in zip(run(lambda p: presets.zclip(p, lr=0.1), 4), run(plain, 4), strict=True):
        assert torch.equal(found, wanted)


def test_spam_does_not_hold_an_entry_that_never_had_a_gradient():
    w = torch.nn.Parameter(torch.zeros(2, 2))
    optimizer = presets.SPAM([w], lr=0.1, clip_after=2)
    for step in range(6):
        w.grad = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
        w.grad[0, 1] = float(step >= 4)
        optimizer.step()
    assert abs(float(w[0, 1].detach())) > 1e-2


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda p: presets.zclip(p, threshold=0.0),
            ValueError,
            "threshold of z-scores must be a positive finite number",
        ),
        (lambda p: presets.zclip(p, warmup=0), ValueError, "warmup must be a whole number of steps >= 2, .* got 0"),
        (lambda p: presets.adagc(p, absolute=-1.0), ValueError, "largest norm must be a positive finite number"),
        (lambda p: presets.SPAM(p, reset=-1), ValueError, "reset must be a whole number of steps, 0 for never, got -1"),
        (lambda p: presets.SPAM([{"params": p, "capturable": True}]), ValueError, "leave capturable False"),
        (lambda p: presets.StableSPAM(p, gammas=(0.9, 0.9)), ValueError, "gammas must be three numbers"),
        (lambda p: presets.NorMuon(p, beta2=1.0), ValueError, "beta2 must be a number in"),
        (lambda p: presets.AdamW([{"params": p, "norm": 1.0}]), TypeError, "such as MaxNorm"),
    ],
)
def test_refusals(make, error, message):
    with pytest.raises(error, match=message):
        make(parameters(SHAPES[:1]))
