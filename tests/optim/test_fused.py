"""fused=True takes the plain path's steps: the plain path is the specification."""

import copy
import gc
import os
import subprocess
import sys
import weakref

import pytest
import torch
from reference_backend import ReferenceBackend

import entryclip as ec
from entryclip.optim.kernels import backends, compiler, cpu
from entryclip.optim.kernels.cpu import Pass

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
    ec.Running(ec.Fixed(0.5), beta=0.9),  # has memory, but looks at nothing
]
RUNNING = ec.Clip(ec.smooth_shrinkage, ec.Running(ec.Quantile(0.99), beta=0.9))
CLIPS = [None, *(ec.Clip(operator, rule) for operator in (ec.smooth_shrinkage, ec.hard_clip) for rule in RULES)]
# Every rule with one of the operators, in turns: what a kernel does for the one does not depend on the other.
COVERING_CLIPS = [
    None,
    *(
        pytest.param(ec.Clip(operator, rule), marks=[] if i % 2 == j else pytest.mark.exhaustive)
        for j, operator in enumerate((ec.smooth_shrinkage, ec.hard_clip))
        for i, rule in enumerate(RULES)
    ),
]
SHAPES = [(200, 250), (3, 80, 90), (40, 4, 4), (7, 5), (1, 1), (33,), (), (0, 4)]


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
    original = cpu._call

    def counting(function, jobs, *rest):
        result = original(function, jobs, *rest)
        for job in jobs:
            for work in (job["first"], job["second"] if function == "adamw_step" and job["found"] else 0):
                counts[int(work)] = counts.get(int(work), 0) + 1
        counts.pop(0, None)
        return result

    monkeypatch.setattr(cpu, "_call", counting)
    return counts


def test_number_of_passes(monkeypatch):
    """Two passes for an exact threshold, one for a known one: else it would be right, but slow."""
    counts = used(monkeypatch)
    for clip, expected in (
        (ec.smooth(0.99), {Pass.UPDATE | Pass.STORE | Pass.COLLECT: 5, Pass.LOAD | Pass.MOVE: 5}),
        (
            ec.Clip(ec.hard_clip, ec.Scale(3.0)),
            {Pass.UPDATE | Pass.STORE | Pass.COLLECT: 5, Pass.LOAD | Pass.MOVE: 5},
        ),
        (ec.Clip(ec.hard_clip, ec.Fixed(1.0)), {Pass.UPDATE | Pass.MOVE: 5}),
        (RUNNING, {Pass.UPDATE | Pass.MOVE | Pass.COLLECT: 5}),
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


@pytest.mark.parametrize("q", [0.5, 0.995])
def test_many_threads_find_the_quantile_of_a_matrix_that_one_of_them_walks(q):
    """That thread has the room of all of them: else there would be a miss, and further passes, in every step."""
    before, p = torch.get_num_threads(), torch.nn.Parameter(torch.zeros(128, 128))
    optimizer, g = ec.optim.AdamW([p], fused=True, post=ec.smooth(q)), torch.Generator().manual_seed(0)
    torch.set_num_threads(64)
    try:
        for _ in range(15):
            p.grad = torch.randn(128, 128, generator=g)
            optimizer.step()
    finally:
        torch.set_num_threads(before)
    assert optimizer._fused[0].hit_share() == 1.0


def test_portable_code_gives_the_same(tmp_path):
    """Without AVX, and without OpenMP, as on another processor or compiler."""
    script = (
        "import entryclip.optim.kernels.compiler as compiler; compiler._MACHINE[:] = [[]]\n"
        "import torch, entryclip as ec\n"
        "torch.manual_seed(0); p = torch.nn.Parameter(torch.zeros(300, 300)); o = ec.optim.AdamW([p], fused=True)\n"
        "q = torch.nn.Parameter(torch.zeros(300, 300)); o2 = ec.optim.AdamW([q])\n"
        "for _ in range(5):\n"
        "    p.grad = q.grad = torch.randn(300, 300); o.step(); o2.step()\n"
        "torch.testing.assert_close(p, q, rtol=2e-6, atol=2e-7)\n"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)
    assert len(list((tmp_path / "entryclip" / "kernels").glob("adamw-*.so"))) == 1


def test_no_compiler(monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(compiler.shutil, "which", lambda name: None)
    compiler.library.cache_clear()
    cpu.load_library.cache_clear()
    try:
        with pytest.raises(RuntimeError, match="needs a C compiler"):
            ec.optim.AdamW([torch.nn.Parameter(torch.ones(2, 2))], fused=True)
    finally:
        compiler.library.cache_clear()
        cpu.load_library.cache_clear()


@pytest.mark.parametrize("clip", COVERING_CLIPS, ids=str)
def test_another_backend_carries_out_the_same_plan(clip, monkeypatch):
    """The plan says all there is to do: a backend of plain torch takes the plain path's steps by it."""
    monkeypatch.setitem(backends.BACKENDS, "cpu", ReferenceBackend)
    monkeypatch.setattr(ReferenceBackend, "plans", 0)
    assert_same(run(False, SHAPES, post=clip), run(True, SHAPES, post=clip))
    assert ReferenceBackend.plans == 12


def one_matrix(fast=True, **options):
    w = torch.nn.Parameter(torch.linspace(-1, 1, 64).reshape(8, 8))
    return w, ec.optim.AdamW([("w", w)], lr=1e-2, fused=fast, **options)


@pytest.mark.parametrize("fast", [True, False])
def test_moments_of_another_shape_are_refused(fast):
    w, optimizer = one_matrix(fast)
    w.grad = torch.ones(8, 8)
    optimizer.step()
    small = torch.nn.Parameter(torch.zeros(4, 4))
    other = ec.optim.AdamW([("small", small)], fused=fast)
    with pytest.raises(ValueError, match=r"parameter small has shape \(4, 4\), but its state exp_avg has \(8, 8\)"):
        other.load_state_dict(optimizer.state_dict())
    assert not other.state
    w.data = torch.zeros(4, 4)  # the moments stay as large as they were
    w.grad = torch.ones(4, 4)
    with pytest.raises(ValueError, match=r"parameter w has shape \(4, 4\), but its state exp_avg has \(8, 8\)"):
        optimizer.step()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("fast", [True, False])
def test_the_default_dtype_changes_nothing(dtype, fast):
    expected = run(fast, [(60, 70)], steps=3)
    (start,), drawn = next(gradients([(60, 70)], 1, seed=1)), [found[0] for found in gradients([(60, 70)], 3)]
    torch.set_default_dtype(dtype)
    try:
        params = [torch.nn.Parameter(start.clone())]
        optimizer = ec.optim.AdamW(params, lr=1e-2, weight_decay=0.1, fused=fast)
        for found in drawn:
            params[0].grad = found
            optimizer.step()
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(params[0], expected[0][0])
    assert optimizer.state[params[0]]["step"].dtype is torch.float32


def test_a_step_counter_saved_in_bf16_or_as_a_number_counts_on():
    for saved in (torch.tensor(256.0, dtype=torch.bfloat16), 256):
        w, optimizer = one_matrix()
        w.grad = torch.ones(8, 8)
        optimizer.step()
        state = optimizer.state_dict()
        state["state"][0]["step"] = saved
        optimizer.load_state_dict(state)
        optimizer.step()
        assert optimizer.state[w]["step"].item() == 257


@pytest.mark.parametrize("change", ["transposed weights", "transposed moments", "negated gradient", "other layout"])
def test_what_the_kernel_rests_on_is_checked_every_step(change):
    """Each of these keeps addresses or objects as they were; the kernel must see that it cannot go on."""

    def turned(x, t):  # a custom operator that answers in another layout
        return x.mT.contiguous().mT * 0.5

    results = []
    for fast in (False, True):
        grad = ec.Clip(turned, ec.Fixed(1.0)) if change == "other layout" else None
        w, optimizer = one_matrix(fast, grad=grad)
        g = torch.Generator().manual_seed(0)
        for step in range(4):
            w.grad = torch.randn(8, 8, generator=g)
            if step == 2 and change == "transposed weights":
                w.data = w.data.t()
            if step == 2 and change == "transposed moments":
                moments = optimizer.state[w]["exp_avg"]
                moments.data = moments.data.t()
            if change == "negated gradient":
                w.grad = torch._neg_view(w.grad)
            optimizer.step()
        results.append(w.detach().clone())
    torch.testing.assert_close(results[1], results[0], rtol=2e-6, atol=2e-7)


def test_parameters_that_leave_are_let_go():
    a, b = (torch.nn.Parameter(torch.zeros(50, 50)) for _ in range(2))
    optimizer = ec.optim.AdamW([a, b], fused=True)
    for p in (a, b):
        p.grad = torch.ones(50, 50)
    optimizer.step()
    gone = weakref.ref(a)
    optimizer.param_groups[0]["params"] = [b]
    del optimizer.state[a], a, p
    optimizer.step()
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_with_fp32_state(dtype):
    results = []
    for fast in (False, True):
        w = torch.nn.Parameter(torch.linspace(-1, 1, 6400).reshape(80, 80).to(dtype))
        optimizer = ec.optim.AdamW([w], lr=1e-2, fused=fast, fp32_state=True)
        g = torch.Generator().manual_seed(0)
        for _ in range(5):
            w.grad = torch.randn(80, 80, generator=g).to(dtype)
            optimizer.step()
        results.append((w, optimizer))
    (a, plain), (b, fused) = results
    torch.testing.assert_close(fused.state[b]["master"], plain.state[a]["master"], rtol=2e-6, atol=2e-7)
    assert torch.equal(b, fused.state[b]["master"].to(dtype))


def test_a_huge_gradient_freezes_nothing():
    """g * g overflows at 3e19, (1 - beta2) * g * g does not: torch and the plain path go on."""
    results = []
    for fast in (False, True):
        w, optimizer = one_matrix(fast)
        for size in (3e19, 1.0, 1.0):
            w.grad = torch.full((8, 8), size)
            optimizer.step()
        assert torch.isfinite(optimizer.state[w]["exp_avg_sq"]).all()
        results.append(w.detach())
    torch.testing.assert_close(results[1], results[0], rtol=2e-6, atol=2e-7)


@pytest.mark.parametrize("policy", ["propagate", "skip", "raise"])
@pytest.mark.parametrize("operator", [ec.smooth_shrinkage, ec.hard_clip])
@pytest.mark.parametrize("rule", [ec.Fixed(1.0), ec.Fixed(0.0), ec.Quantile(0.5), ec.Quantile(1.0)], ids=str)
def test_policies_agree_where_the_direction_is_not_finite(policy, operator, rule):
    """With eps = 0 a zero gradient gives 0/0, and one whose square underflows gives x/0, though both are finite."""
    results = []
    for fast in (False, True):
        w = torch.nn.Parameter(torch.zeros(6, 6))
        optimizer = ec.optim.AdamW([w], eps=0.0, fused=fast, nonfinite=policy, post=ec.Clip(operator, rule))
        w.grad = torch.linspace(-1, 1, 36).reshape(6, 6)
        w.grad[0, :3] = torch.tensor([1e-30, -1e-30, 1e-25])
        optimizer.step()
        results.append(w.detach())
    torch.testing.assert_close(results[1], results[0], rtol=2e-6, atol=2e-7, equal_nan=True)


def test_a_tensor_learning_rate_with_a_threshold_that_follows_it():
    results = []
    for fast in (False, True):
        clip = ec.Clip(ec.hard_clip, ec.FollowLR(ec.Quantile(0.9), base_lr=1e-2))
        w = torch.nn.Parameter(torch.zeros(8, 8))
        optimizer = ec.optim.AdamW([w], lr=torch.tensor(5e-3), fused=fast, post=clip)
        for _ in range(3):
            w.grad = torch.linspace(-1, 1, 64).reshape(8, 8)
            optimizer.step()
        results.append(w.detach())
    torch.testing.assert_close(results[1], results[0], rtol=2e-6, atol=2e-7)


@pytest.mark.parametrize("fast", [True, False])
def test_a_checkpoint_of_another_rule_goes_on(fast):
    running = ec.Clip(ec.hard_clip, ec.Running(ec.Quantile(0.9), beta=0.5))
    for first, second in ((running, ec.hard(0.9)), (ec.hard(0.9), running)):
        w, optimizer = one_matrix(fast, post=first)
        w.grad = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
        optimizer.step()
        v, other = one_matrix(fast, post=second)
        with pytest.warns(UserWarning, match="saved with post="):
            other.load_state_dict(optimizer.state_dict())
        v.grad = w.grad
        other.step()
        assert [key for key in other.state[v] if key.startswith("post_")] == (
            ["post_average", "post_valid"] if second is running else []
        )


@pytest.mark.filterwarnings("ignore:.*no kernel for SGD on a CPU")
@pytest.mark.parametrize("make", [ec.optim.Muon, lambda p, **options: ec.optim.SGD(p, momentum=0.9, **options)])
def test_muon_and_sgd_take_the_plain_step_on_a_cpu(make):
    """Their kernels are for GPUs; a model may move there later with the same optimizer."""
    results = []
    for fast in (False, True):
        w = torch.nn.Parameter(torch.zeros(8, 12))
        optimizer = make([w], lr=1e-2, fused=fast)
        for found in gradients([(8, 12)], 3):
            w.grad = found[0]
            optimizer.step()
        results.append(w.detach())
        assert optimizer.param_groups[0]["fused"] is fast
    assert torch.equal(*results)


def test_small_matrices_need_no_guess(monkeypatch):
    """Their quantile is found in the kernel at the first step, too: with ties, and with nothing to rank."""

    def fail(job):
        raise AssertionError("a quantile was looked for outside of the kernel")

    monkeypatch.setattr(cpu, "_quantile_of_direction", fail)
    for value in (0.0, 1.0):
        params = [torch.nn.Parameter(torch.zeros(shape)) for shape in ((8, 8), (50, 4, 4), (64, 64))]
        optimizer = ec.optim.AdamW(params, fused=True)
        for p in params:
            p.grad = torch.full_like(p, value)
        optimizer.step()
        expected = -1e-3 * value * torch.exp(torch.tensor(-1.0))
        assert all(torch.allclose(p, expected.expand(p.shape), atol=1e-8) for p in params)


def test_what_is_frozen_is_let_go():
    """The plan keeps no gradient after a step, and a frozen parameter does not keep the memory of the others."""
    params = [torch.nn.Parameter(torch.zeros(40, 40)) for _ in range(6)]
    optimizer = ec.optim.AdamW([{"params": params[:3]}, {"params": params[3:]}], fused=True, post=RUNNING)
    for frozen in range(7):
        found = []
        for p in params[frozen:]:
            p.grad = torch.randn(40, 40)
            found.append(weakref.ref(p.grad))
        optimizer.step()
        optimizer.zero_grad()
        gc.collect()
        assert all(gradient() is None for gradient in found)
    assert not optimizer._fused
    sizes = [optimizer.state[p]["post_average"].untyped_storage().nbytes() for p in params]
    assert max(sizes[1], sizes[4]) == 4  # of its own, since there was a later plan without it


def test_the_first_step_is_linear_in_the_number_of_parameters():
    """In calls of Python functions: eight times as many parameters make at most nine times as many."""
    counts = []
    for count in (100, 800):
        params = [torch.nn.Parameter(torch.zeros(4, 4)) for _ in range(count)]
        optimizer = ec.optim.AdamW(params, fused=True)
        for p in params:
            p.grad = torch.ones(4, 4)
        calls = 0

        def count_call(*event):
            nonlocal calls
            calls += 1

        sys.setprofile(count_call)
        try:
            optimizer.step()
        finally:
            sys.setprofile(None)
        counts.append(calls)
    assert counts[1] <= 9 * counts[0]


def test_later_steps_do_little_for_each_parameter():
    """In calls of Python functions: a step of hundreds of parameters on a GPU would wait for the host otherwise."""

    def calls_of_a_step(count):
        params = [torch.nn.Parameter(torch.zeros(4, 4)) for _ in range(count)]
        optimizer = ec.optim.AdamW(params, fused=True)
        calls = 0

        def count_call(frame, event, argument):
            nonlocal calls
            calls += event == "call"

        for step in range(3):
            for p in params:
                p.grad = torch.ones(4, 4)
            sys.setprofile(count_call if step == 2 else None)
            try:
                optimizer.step()
            finally:
                sys.setprofile(None)
        return calls

    assert (calls_of_a_step(200) - calls_of_a_step(100)) / 100 <= 6


def test_a_kernel_that_is_left_out_for_a_step_comes_back():
    """The plan of the step between has no parameter, since the gradient is not contiguous."""
    results = []
    for fast in (False, True):
        w, optimizer = one_matrix(fast, post=RUNNING)
        g = torch.Generator().manual_seed(0)
        for step in range(5):
            w.grad = torch.randn(8, 8, generator=g)
            if step == 2:
                w.grad = w.grad.t()
            optimizer.step()
            if fast:
                assert optimizer._fused[0].taken == ([] if step == 2 else [0])
        results.append(w.detach().clone())
    torch.testing.assert_close(results[1], results[0], rtol=2e-6, atol=2e-7)
