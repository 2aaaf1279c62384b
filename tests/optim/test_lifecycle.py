"""What a training script does with an optimizer besides stepping: save, load, copy, schedule, scale, add groups."""

import copy
import io
import pickle

import pytest
import torch

import entryclip as ec
from entryclip import optim
from entryclip.optim.direction import Direction
from entryclip.optim.methods.method import register
from entryclip.optim.methods.sgd import SGDMethod

RUNNING = ec.Clip(ec.smooth_shrinkage, ec.Running(ec.Quantile(0.9), beta=0.9))
MAKERS = {
    "sgd": lambda params: optim.SGD(params, lr=0.01, momentum=0.9, grad=RUNNING, post=ec.hard(0.9)),
    "adamw": lambda params: optim.AdamW(params, lr=0.01, post=RUNNING),
    "adamw amsgrad": lambda params: optim.AdamW(params, lr=0.01, amsgrad=True, grad=ec.smooth(0.9), post=RUNNING),
    "muon": lambda params: optim.Muon(params, lr=0.01, grad=ec.smooth(0.99), pre=RUNNING),
}


def parameters(dtype=torch.float32):
    g = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, generator=g).to(dtype)) for shape in ((8, 6), (3, 5, 5))]


def train(optimizer, first, last):
    """Gradients that depend on the step alone."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    for step in range(first, last):
        g = torch.Generator().manual_seed(step)
        for p in params:
            p.grad = torch.randn(p.shape, generator=g).to(p.dtype)
        optimizer.step()
    return [p.detach().clone() for p in params]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", MAKERS)
def test_resumes_to_the_bit(name, dtype):
    undisturbed = train(MAKERS[name](parameters(dtype)), 0, 20)
    first = MAKERS[name](params := parameters(dtype))
    train(first, 0, 10)
    file = io.BytesIO()
    torch.save({"optimizer": first.state_dict(), "params": [p.data for p in params]}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    second = MAKERS[name]([torch.nn.Parameter(p) for p in saved["params"]])
    second.load_state_dict(saved["optimizer"])
    for a, b in zip(train(second, 10, 20), undisturbed, strict=True):
        assert torch.equal(a, b)
    p = second.param_groups[0]["params"][0]
    averages = [value for key, value in second.state[p].items() if key.endswith("average")]
    assert len(averages) == 1
    assert averages[0].dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"]
)
def test_copies_go_on_alike(name, duplicate):
    original = MAKERS[name](parameters())
    train(original, 0, 5)
    twin = duplicate(original)
    for a, b in zip(train(original, 5, 10), train(twin, 5, 10), strict=True):
        assert torch.equal(a, b)


def test_thresholds_find_their_parameter_whatever_its_number():
    """A checkpoint may number parameters as it likes; thresholds go where the moments go."""
    saved = MAKERS["adamw"](params := parameters(torch.bfloat16))
    train(saved, 0, 3)
    checkpoint = copy.deepcopy(saved.state_dict())
    checkpoint["state"] = {10 + place: state for place, state in checkpoint["state"].items()}
    checkpoint["param_groups"][0]["params"] = [10, 11]
    other = MAKERS["adamw"](twins := parameters(torch.bfloat16))
    other.load_state_dict(checkpoint)
    for p, twin in zip(params, twins, strict=True):
        assert torch.equal(saved.state[p]["post_average"], other.state[twin]["post_average"])
        assert other.state[twin]["post_average"].dtype == torch.float32


def test_another_clip_on_loading_is_said():
    saved = MAKERS["adamw"](parameters())
    train(saved, 0, 2)
    other = optim.AdamW(parameters(), post=ec.hard(0.9))
    with pytest.warns(UserWarning, match=r"saved with post=smooth_shrinkage\(running q=0.9.*going on with hard_clip"):
        other.load_state_dict(saved.state_dict())
    assert other.param_groups[0]["post"] == ec.hard(0.9)


def test_scheduler_closure_and_hooks():
    w = torch.nn.Parameter(torch.ones(4, 4))
    optimizer = optim.AdamW([w], lr=1.0)
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("pre"))
    optimizer.register_step_post_hook(lambda *_: calls.append("post"))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)

    def closure():
        optimizer.zero_grad()
        loss = (w**2).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 16
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert calls == ["pre", "post"]


def test_follow_lr_follows_the_scheduler():
    w = torch.nn.Parameter(torch.zeros(2, 2))
    clip = ec.Clip(ec.hard_clip, ec.FollowLR(ec.Fixed(1.0), base_lr=1.0))
    optimizer = optim.SGD([w], lr=1.0, post=clip)
    for lr, expected in ((1.0, -1.0), (0.5, -1.25)):
        optimizer.param_groups[0]["lr"] = lr
        w.grad = 100 * torch.ones(2, 2)
        optimizer.step()
        assert (w.data == expected).all()


def test_groups_have_their_own_options():
    a, b = (torch.nn.Parameter(torch.ones(4, 4)) for _ in range(2))
    optimizer = optim.SGD([{"params": [a], "weight_decay": 0.5, "post": ec.hard(1.0)}], lr=0.1)
    optimizer.add_param_group({"params": [b], "lr": 1.0, "post": ec.Clip(ec.hard_clip, ec.Fixed(0.0))})
    a.grad = b.grad = torch.zeros(4, 4)
    optimizer.step()
    torch.testing.assert_close(a.data, torch.full((4, 4), 0.95))
    torch.testing.assert_close(b.data, torch.ones(4, 4))


def test_gradscaler_skips_on_inf_and_clips_at_true_scale():
    w = torch.nn.Parameter(torch.zeros(4, 4))
    optimizer = optim.SGD([w], lr=1.0, post=ec.Clip(ec.hard_clip, ec.Fixed(2.0)))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale((3 * w).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    torch.testing.assert_close(w.data, torch.full((4, 4), -2.0))
    optimizer.zero_grad()
    scaler.scale((float("inf") * w).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    torch.testing.assert_close(w.data, torch.full((4, 4), -2.0))
    assert scaler.get_scale() == 512


SPIKES = [float("inf"), -float("inf"), float("nan")]


@pytest.mark.parametrize("spike", SPIKES)
@pytest.mark.parametrize("name", MAKERS)
def test_propagate_shows_an_overflow(name, spike):
    """An operator's limit would turn inf into 0 or the threshold; people must see it in the weights."""
    optimizer = MAKERS[name](params := parameters())
    for p in params:
        p.grad = torch.ones_like(p)
    params[0].grad[2, 3] = spike
    optimizer.step()
    assert torch.isnan(params[0][2, 3])
    assert torch.isfinite(params[1]).all()


@pytest.mark.parametrize("spike", SPIKES)
def test_skip_leaves_everything_and_counts(spike):
    params = parameters()
    optimizer = optim.AdamW(params, nonfinite="skip", post=RUNNING)
    train(optimizer, 0, 3)
    before, state = [p.detach().clone() for p in params], copy.deepcopy(optimizer.state_dict()["state"])
    params[1].grad[0, 0, 0] = spike
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, params, strict=True))
    after = optimizer.state_dict()["state"]
    assert all(torch.equal(after[i][key], state[i][key]) for i in state for key in state[i])
    assert optimizer.param_groups[0]["skipped"] == 1
    assert optimizer.param_groups[0]["steps"] == 4


def test_raise_names_the_parameter():
    model = torch.nn.Linear(3, 3)
    optimizer = optim.SGD(model.named_parameters(), nonfinite="raise")
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    model.weight.grad[1, 1] = float("inf")
    with pytest.raises(FloatingPointError, match=r"parameter weight, shape \(3, 3\), is not finite"):
        optimizer.step()


W = torch.nn.Parameter(torch.zeros(6, 4))
V = torch.nn.Parameter(torch.zeros(4))


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: optim.SGD([W], lr=-1.0), ValueError, "lr must be a finite number >= 0, got -1.0"),
        (lambda: optim.SGD([W], lr=float("inf")), ValueError, "lr must be a finite number"),
        (lambda: optim.SGD([W], lr=float("nan")), ValueError, "lr must be a finite number"),
        (lambda: optim.SGD([W], weight_decay=-0.1), ValueError, "weight_decay must be"),
        (lambda: optim.SGD([W], nesterov=True), ValueError, "nesterov needs a momentum"),
        (lambda: optim.AdamW([W], betas=(1.0, 0.9)), ValueError, r"each of betas must be a number in \[0, 1\)"),
        (lambda: optim.AdamW([W], eps=-1e-8), ValueError, "eps must be a finite number >= 0"),
        (
            lambda: optim.SGD([torch.nn.Parameter(W.to(torch.complex64))]),
            RuntimeError,
            "complex parameters are not sup",
        ),
        (lambda: optim.SGD([W], lr="0.1"), TypeError, "lr must be a finite number >= 0, got '0.1'"),
        (lambda: optim.SGD([W], lr=torch.ones(2)), ValueError, r"a tensor of one entry, got a tensor of shape \(2,\)"),
        (lambda: optim.SGD([W], momentum="0.9"), TypeError, "momentum must be a finite number >= 0, got '0.9'"),
        (lambda: optim.SGD([W], dampening="0.9"), TypeError, "dampening must be a number"),
        (lambda: optim.AdamW([W], betas=("0.9", 0.9)), TypeError, "each of betas must be a number"),
        (lambda: optim.AdamW([W], betas=(0.9,)), ValueError, "betas must be two numbers"),
        (lambda: optim.AdamW([W], eps="0"), TypeError, "eps must be a finite number >= 0"),
        (lambda: optim.Muon([W], eps=-1e-7), ValueError, "eps must be a finite number >= 0, got -1e-07"),
        (lambda: optim.AdaMuon([W], eps=-1e-7), ValueError, "eps must be a finite number >= 0"),
        (lambda: optim.AdaMuon([W], beta2=1.0), ValueError, r"beta2 must be a number in \[0, 1\)"),
        (lambda: optim.AdamW([W], post=0.995), TypeError, "post must be a Clip such as"),
        (lambda: optim.AdamW([W], nonfinite="ignore"), ValueError, "nonfinite must be one of propagate, skip, raise"),
        (lambda: optim.Staged([{"params": [W], "method": "sgd", "pre": ec.hard(0.9)}]), ValueError, "sgd has none"),
        (lambda: optim.Staged([{"params": [W]}]), ValueError, "method must be one of adamuon, adamw"),
        (lambda: optim.Staged([{"params": [W], "method": "sgd", "blocks": 4}]), ValueError, "does not divide the rows"),
        (lambda: optim.Muon([V]), ValueError, "Muon takes matrices"),
        (lambda: optim.Muon([W], momentum=1.0), ValueError, r"momentum must be a number in \[0, 1\)"),
        (lambda: optim.Muon([W], adjust_lr_fn="big"), ValueError, "adjust_lr_fn must be one of"),
        (lambda: optim.Muon([W], sign="magic"), ValueError, "method must be one of newton_schulz"),
        (lambda: optim.Muon([W], ns_steps=0), ValueError, "ns_steps must be from 1 to 99"),
    ],
)
def test_bad_input(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_sparse_gradients_are_refused():
    w = torch.nn.Parameter(torch.zeros(3, 3))
    w.grad = torch.eye(3).to_sparse()
    with pytest.raises(RuntimeError, match="does not take sparse gradients"):
        optim.AdamW([w]).step()


@pytest.mark.parametrize("options", [{}, {"nonfinite": "skip"}, {"fused": True}, {"grad": ec.hard(0.9)}], ids=str)
def test_sparse_gradients_are_refused_by_every_path(options):
    params = [torch.nn.Parameter(torch.zeros(3, 3)) for _ in range(2)]
    optimizer = optim.AdamW(params, **options)
    for p in params:
        p.grad = torch.eye(3).to_sparse()
    with pytest.raises(RuntimeError, match="does not take sparse gradients"):
        optimizer.step()


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_counter_that_is_a_plain_number(fused):
    """Also one that was unpickled or put there by hand: `load_state_dict` never saw it."""
    optimizer, other = (optim.AdamW(parameters(), fused=fused) for _ in range(2))
    train(optimizer, 0, 3)
    train(other, 0, 3)
    for state in other.state.values():
        state["step"] = 3
    for a, b in zip(train(optimizer, 3, 6), train(other, 3, 6), strict=True):
        assert torch.equal(a, b)


def test_copies_keep_what_a_subclass_set():
    class Named(optim.AdamW):
        def __init__(self, params, label):
            self.label = label
            super().__init__(params)

    twin = pickle.loads(pickle.dumps(optim.AdamW(parameters())))
    assert not hasattr(twin, "label")
    optimizer = Named(parameters(), "first")
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    twin = copy.deepcopy(optimizer)
    assert twin.label == "first"
    before = train(optimizer, 0, 0)
    train(twin, 0, 1)
    assert all(
        torch.equal(a, b) for a, b in zip(before, train(optimizer, 0, 0), strict=True)
    )  # not the original's step
    assert scheduler.optimizer is optimizer


def test_a_subclass_of_the_same_name_replaces_nothing():
    """Names of classes are the user's: only objects and registered names say which method a group follows."""

    class Doubled(SGDMethod):
        def direction(self, g, w, state, group):
            return Direction(2 * super().direction(g, w, state, group).tensor())

    class SGD(optim.SGD):
        method = Doubled()

    moved = []
    for make in (optim.SGD, SGD, lambda p, lr: optim.Staged([{"params": p, "method": "sgd", "lr": lr}])):
        w = torch.nn.Parameter(torch.zeros(2, 2))
        optimizer = make([w], lr=1.0)
        w.grad = torch.ones(2, 2)
        optimizer.step()
        moved.append(w.data[0, 0].item())
    assert moved == [-1.0, -2.0, -1.0]


def test_a_second_method_of_one_name_is_refused():
    class Other(SGDMethod):
        pass

    with pytest.raises(ValueError, match="there is a method named 'sgd' already, SGDMethod: choose another name"):
        register(Other())
    assert register(SGDMethod()) is optim.SGD.method  # the same again is no collision


def test_a_refused_group_leaves_no_trace():
    v = torch.nn.Parameter(torch.zeros(3, 3))
    optimizer = optim.AdamW([torch.nn.Parameter(torch.zeros(2, 2))])
    for options in ({"betas": (1.0, 0.9)}, {"post": 0.9}, {"blocks": 2}):
        with pytest.raises((ValueError, TypeError)):
            optimizer.add_param_group({"params": [v], **options})
    assert len(optimizer.param_groups) == 1
    optimizer.add_param_group({"params": [v]})


def test_a_load_hook_that_reorders_parameters_is_followed():
    """Thresholds and fp32 state go to the parameters that the hook chose, as torch's own buffers do."""
    clip = ec.Clip(ec.hard_clip, ec.Running(ec.Quantile(1.0), beta=0.5))
    a, b = (torch.nn.Parameter(torch.zeros(2, 2)) for _ in range(2))
    optimizer = optim.SGD([a, b], post=clip)
    a.grad, b.grad = torch.ones(2, 2), 5 * torch.ones(2, 2)
    optimizer.step()
    c, d = (torch.nn.Parameter(torch.zeros(2, 2)) for _ in range(2))
    other = optim.SGD([c, d], post=clip)

    def swap(_, saved):
        saved["state"] = {0: saved["state"][1], 1: saved["state"][0]}
        return saved

    other.register_load_state_dict_pre_hook(swap)
    other.load_state_dict(optimizer.state_dict())
    assert [other.state[p]["post_average"].item() for p in (c, d)] == [5.0, 1.0]


def test_a_checkpoint_of_another_method_is_refused():
    p = torch.nn.Parameter(torch.zeros(2, 2))
    with pytest.raises(ValueError, match="saved with method muon, this group follows adamw"):
        optim.AdamW([p]).load_state_dict(optim.Muon([p]).state_dict())
