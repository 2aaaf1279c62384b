"""fused=True takes the plain path's steps: the plain path is the specification."""

import copy
import os
import stat
import subprocess
import sys

import pytest
import torch

import entryclip as ec
from entryclip.optim.kernels import fused, native

RULES = [
    ec.Quantile(0.995),
    ec.Quantile(0.3),
    ec.Quantile(1.0),
    ec.Scale(4.0),
    ec.Fixed(0.7),
    ec.Fixed(0.0),
    ec.Fixed(float("inf")),
    ec.FollowLR(ec.Fixed(1.0), base_lr=1e-2),
    ec.Running(ec.Quantile(0.99), beta=0.9),
    ec.Running(ec.Scale(3.0), beta=0.5, lag=0),
]
RUNNING = ec.Clip(ec.smooth_shrinkage, ec.Running(ec.Quantile(0.99), beta=0.9))
CLIPS = [None, *(ec.Clip(operator, rule) for operator in (ec.smooth_shrinkage, ec.hard_clip) for rule in RULES)]
SHAPES = [(200, 250), (3, 80, 90), (7, 5), (1, 1), (33,), (), (0, 4)]


def gradients(shapes, steps, seed=0, spike=True):
    g = torch.Generator().manual_seed(seed)
    for step in range(steps):
        size = 1.0 + step % 3  # so that the guess is now and then no good
        found = [size * torch.randn(shape, generator=g) for shape in shapes]
        for x in found:
            if spike and x.ndim >= 2 and x.numel():
                x.view(-1)[0] = 1e4
                x[..., -1:] = 0  # zeros are not ranked
        yield found


def run(fast, shapes, steps=12, **options):
    params = [torch.nn.Parameter(x) for x in next(gradients(shapes, 1, seed=1))]
    optimizer = ec.optim.AdamW(params, lr=1e-2, weight_decay=0.1, fused=fast, **options)
    for found in gradients(shapes, steps):
        for p, g in zip(params, found, strict=True):
            p.grad = g
        optimizer.step()
    return params, optimizer


def assert_same(plain, fast):
    for a, b in zip(plain[0], fast[0], strict=True):
        torch.testing.assert_close(b, a, rtol=2e-6, atol=2e-7)
        for key, value in plain[1].state[a].items():
            torch.testing.assert_close(fast[1].state[b][key], value, rtol=2e-6, atol=1e-12, msg=f"{key} differs")
    assert [list(s) for s in plain[1].state.values()] == [list(s) for s in fast[1].state.values()]


@pytest.mark.parametrize("clip", CLIPS, ids=str)
def test_fused_equals_plain(clip):
    assert_same(run(False, SHAPES, post=clip), run(True, SHAPES, post=clip))


@pytest.mark.parametrize(
    "options",
    [
        {"maximize": True},
        {"grad": ec.hard(0.9)},
        {"betas": (0.0, 0.5), "eps": 1e-3},
        {"clip_vectors": True},
        {"amsgrad": True},
        {"post": ec.smooth(0.99, preserve_rms=True)},
        {"post": ec.Clip(ec.soft_threshold, ec.Quantile(0.5))},
        {"nonfinite": "skip"},
    ],
    ids=str,
)
def test_options(options):
    assert_same(run(False, SHAPES, **options), run(True, SHAPES, **options))


def used(monkeypatch):
    """How often each kind of pass was asked for."""
    counts = {}
    original = fused.Fast._run

    def counting(self, jobs):
        original(self, jobs)
        for job in jobs:
            for work in (job["first"], job["second"] if job["found"] else 0):
                counts[int(work)] = counts.get(int(work), 0) + 1
        counts.pop(0, None)

    monkeypatch.setattr(fused.Fast, "_run", counting)
    return counts


def test_number_of_passes(monkeypatch):
    """Two passes for an exact threshold, one for a known one: else it would be right, but slow."""
    counts = used(monkeypatch)
    for clip, expected in (
        (ec.smooth(0.99), {fused.UPDATE | fused.STORE | fused.COLLECT: 5, fused.LOAD | fused.MOVE: 5}),
        (
            ec.Clip(ec.hard_clip, ec.Scale(3.0)),
            {fused.UPDATE | fused.STORE | fused.COLLECT: 5, fused.LOAD | fused.MOVE: 5},
        ),
        (ec.Clip(ec.hard_clip, ec.Fixed(1.0)), {fused.UPDATE | fused.MOVE: 5}),
        (RUNNING, {fused.UPDATE | fused.MOVE | fused.COLLECT: 5}),
    ):
        p = torch.nn.Parameter(torch.zeros(512, 512))
        optimizer = ec.optim.AdamW([p], fused=True, post=clip)
        generator = torch.Generator().manual_seed(0)
        for step in range(35):
            p.grad = torch.randn(512, 512, generator=generator)
            if step == 30:  # in the first steps Adam's direction is not settled, and guesses may miss
                counts.clear()
            optimizer.step()
        assert counts == expected


def test_plain_path_where_the_kernel_does_not_reach(monkeypatch):
    counts = used(monkeypatch)
    for p, g in (
        (torch.ones(64, 64, dtype=torch.bfloat16), None),
        (torch.ones(64, 32).mT, None),
        (torch.ones(64, 64), torch.ones(64, 64).mT.contiguous().mT),
        (torch.ones(200, 4, 4), None),  # many small matrices are faster together
    ):
        a, b = (torch.nn.Parameter(p.clone(memory_format=torch.preserve_format)) for _ in range(2))
        for x, fast in ((a, False), (b, True)):
            x.grad = torch.randn_like(x) if g is None else g
            x.grad = x.grad if fast is False else a.grad
            ec.optim.AdamW([x], fused=fast).step()
        assert torch.equal(a, b)
    assert not counts


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("clip", [ec.smooth(0.9), ec.hard(0.9), ec.Clip(ec.hard_clip, ec.Fixed(1.0)), None], ids=str)
def test_a_broken_gradient_arrives(value, clip):
    """A non-finite gradient makes the same entries NaN as on the plain path."""
    found = []
    for fast in (False, True):
        p = torch.nn.Parameter(torch.ones(40, 40))
        optimizer = ec.optim.AdamW([p], fused=fast, post=clip)
        for entry in (0.1, value):
            p.grad = torch.linspace(-1, 1, 1600).reshape(40, 40)
            p.grad[3, 4] = entry
            optimizer.step()
        found.append(p.detach())
    assert torch.isnan(found[0][3, 4])
    assert torch.equal(torch.isnan(found[0]), torch.isnan(found[1]))


def test_copies_and_checkpoints_go_on():
    params, optimizer = run(True, SHAPES, steps=4)
    optimizer = copy.deepcopy(optimizer)
    again = ec.optim.AdamW([torch.nn.Parameter(p.detach().clone()) for p in params], lr=1e-2, fused=True)
    state = copy.deepcopy(optimizer.state_dict()["state"])
    again.load_state_dict(torch.optim.AdamW(params, fused=True).state_dict() | {"state": state})
    assert again.param_groups[0]["fused"] is True
    for opt in (optimizer, again):
        opt.param_groups[0].update(lr=1e-2, weight_decay=0.1)
        for p, g in zip(opt.param_groups[0]["params"], next(gradients(SHAPES, 1)), strict=True):
            p.grad = g
        opt.step()
    for a, b in zip(optimizer.param_groups[0]["params"], again.param_groups[0]["params"], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_a_plain_optimizer_stays_plain_after_loading_a_fused_checkpoint():
    p = torch.nn.Parameter(torch.ones(4, 4))
    optimizer = ec.optim.AdamW([p])
    optimizer.load_state_dict(torch.optim.AdamW([p], fused=True).state_dict())
    assert optimizer.param_groups[0]["fused"] is False


def test_every_number_of_threads():
    results = []
    for threads in (1, 2, 3):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            results.append(run(True, [(300, 333)], steps=4)[0][0])
        finally:
            torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_the_library_is_the_users_own(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = native._folder()
    assert folder == tmp_path / "entryclip"
    assert stat.S_IMODE(folder.stat().st_mode) & 0o022 == 0
    folder.chmod(0o777)  # others could put a library there
    elsewhere = native._folder()
    assert elsewhere != folder
    assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o700
    elsewhere.rmdir()


def test_portable_code_gives_the_same(tmp_path):
    """Without AVX, and without OpenMP, as on another processor or compiler."""
    script = (
        "import entryclip.optim.native as native; native._MACHINE[:] = [[]]\n"
        "import torch, entryclip as ec\n"
        "torch.manual_seed(0); p = torch.nn.Parameter(torch.zeros(300, 300)); o = ec.optim.AdamW([p], fused=True)\n"
        "q = torch.nn.Parameter(torch.zeros(300, 300)); o2 = ec.optim.AdamW([q])\n"
        "for _ in range(5):\n"
        "    p.grad = q.grad = torch.randn(300, 300); o.step(); o2.step()\n"
        "torch.testing.assert_close(p, q, rtol=2e-6, atol=2e-7)\n"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)
    assert len(list((tmp_path / "entryclip").glob("adamw-*.so"))) == 1


def test_no_compiler(monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(native.shutil, "which", lambda name: None)
    native.library.cache_clear()
    fused.load.cache_clear()
    try:
        with pytest.raises(RuntimeError, match="needs a C compiler"):
            ec.optim.AdamW([torch.nn.Parameter(torch.ones(2, 2))], fused=True)
    finally:
        native.library.cache_clear()
        fused.load.cache_clear()
