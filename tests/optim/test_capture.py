"""CUDA graphs: a recorded step, run again with other gradients, takes the steps that eager ones take, to the bit."""

import copy
import warnings

import pytest
import torch
from recorder import Elsewhere, Places, record

import entryclip as ec
from entryclip import optim
from entryclip.optim import capture, device_shrinkage, groups, stacked_clip
from entryclip.optim.methods import adamw, muon

SHAPES = [(12, 20), (2, 10, 8), (8, 10), (7,)]  # the matrices of two parameters share a stack
RULES = [
    ec.Quantile(0.95),
    ec.Quantile(0.5),
    ec.Scale(3.0),
    ec.Fixed(0.7),
    ec.FollowLR(ec.Quantile(0.9), base_lr=1e-2),
    ec.Running(ec.Quantile(0.9), beta=0.8),
    ec.Running(ec.Scale(3.0), beta=0.8, lag=0),
    ec.FollowLR(ec.Running(ec.Quantile(0.9), beta=0.8), base_lr=1e-2),
]
CLIPS = [
    None,
    *(ec.Clip(ec.smooth_shrinkage, rule) for rule in RULES),
    ec.hard(0.9),
    ec.smooth(0.9, preserve_rms=True),
    ec.Clip(ec.soft_spectral_clip, ec.Fixed(1.0)),
    ec.Clip(ec.global_clip, ec.Fixed(1.0)),
]
RUNNING = ec.Clip(ec.smooth_shrinkage, ec.Running(ec.Quantile(0.9), beta=0.8))
METHODS = {
    "sgd": (optim.SGD, "post", {}),
    "sgd, momentum": (optim.SGD, "grad", {"momentum": 0.9, "nesterov": True}),
    "adamw": (optim.AdamW, "post", {}),
    "adamw, amsgrad": (optim.AdamW, "grad", {"amsgrad": True, "maximize": True}),
    "muon": (optim.Muon, "pre", {}),
    "muon, after the sign": (optim.Muon, "post", {"nesterov": False, "sign": "exact"}),
    "adamuon": (optim.AdaMuon, "post", {}),
}
# Every clip for one form of each method, some for the others.
CASES = [
    (method, clip)
    for method in METHODS
    for clip in (CLIPS if method in ("sgd", "adamw", "muon") else [None, ec.hard(0.9), RUNNING])
]


@pytest.fixture
def as_on_a_device(monkeypatch):
    """Lets CPU tensors take the device's path."""
    for module in (device_shrinkage, stacked_clip, adamw, muon, capture):
        monkeypatch.setattr(module, "on_device", lambda x: True)


def gradients(shapes, seed):
    return [
        (1 + seed) * torch.randn(shape, generator=torch.Generator().manual_seed(100 * seed + i))
        for i, shape in enumerate(shapes)
    ]


class Training:
    """Parameters with gradients at fixed addresses, and an optimizer whose learning rate is a tensor beside them."""

    def __init__(self, make, shapes, dtype=torch.float32):
        self.shapes = shapes
        self.params = [torch.nn.Parameter(g.to(dtype)) for g in gradients(shapes, 0)]
        for p in self.params:
            p.grad = torch.zeros_like(p)
        self.lr = torch.tensor(1e-2)
        self.optimizer = make(self.params, self.lr)

    def set_step(self, seed):
        """Write the gradients and the learning rate of a step to where the last ones were."""
        for p, g in zip(self.params, gradients(self.shapes, seed), strict=True):
            p.grad.copy_(g)
        self.lr.fill_(1e-2 / (1 + seed))

    def eager_step(self, seed):
        self.set_step(seed)
        with Elsewhere():
            self.optimizer.step()

    def everything(self):
        """Return all that a step changes: the parameters, their state, and the number of steps."""
        state = [value for p in self.params for _, value in sorted(self.optimizer.state[p].items())]
        return [*self.params, *state, self.optimizer.param_groups[0]["steps"]]


def check_replays(make, shapes, dtype=torch.float32, warm=2, replays=2):
    """Take the same steps eagerly and by replaying the first one after the warm-up, and compare all bits."""
    eager, graph = (Training(make, shapes, dtype) for _ in range(2))
    for seed in range(warm):
        eager.eager_step(seed)
        graph.eager_step(seed)
    graph.set_step(warm)
    recorder = record(graph.optimizer.step)
    for seed in range(warm + 1, warm + 1 + replays):
        graph.set_step(seed)
        recorder.replay()
    for seed in range(warm, warm + 1 + replays):
        eager.eager_step(seed)
    assert len(eager.everything()) == len(graph.everything())
    for a, b in zip(eager.everything(), graph.everything(), strict=True):
        assert torch.equal(a, b)
    assert int(graph.optimizer.param_groups[0]["steps"]) == warm + 1 + replays


@pytest.mark.filterwarnings("ignore:a global norm clip")
@pytest.mark.parametrize(("method", "clip"), CASES, ids=str)
def test_a_replay_is_an_eager_step(method, clip, as_on_a_device):
    make, stage, options = METHODS[method]
    shapes = SHAPES[:3] if "muon" in method else SHAPES
    options = {**options, **({"pre": None} if make is optim.Muon else {}), stage: clip, "weight_decay": 0.1}
    check_replays(lambda params, lr: make(params, lr, capturable=True, **options), shapes)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_replay_in_half_precision(dtype, as_on_a_device):
    def make(params, lr):
        return optim.AdamW(params, lr, capturable=True, fp32_state=True, clip_vectors=True, post=RUNNING)

    check_replays(make, SHAPES, dtype)


def test_a_replay_of_several_groups(as_on_a_device):
    """A learning rate that is a number stays that of the capture; the other group's follows its tensor."""

    def make(params, lr):
        matrices = {"params": params[:3], "method": "muon", "lr": lr, "capturable": True}
        return optim.Staged([matrices, {"params": params[3:], "method": "adamw", "lr": 1e-3, "capturable": True}])

    check_replays(make, SHAPES)


def test_what_the_host_reads_would_be_seen(as_on_a_device):
    """The same step without `capturable` reads its counter, and its replays repeat one bias correction."""
    training = Training(lambda params, lr: optim.AdamW(params, lr), SHAPES)
    training.eager_step(0)
    with pytest.raises(RuntimeError, match="the host reads a tensor"):
        record(training.optimizer.step)


@pytest.mark.parametrize(("method", "clip"), CASES, ids=str)
def test_no_tensor_of_the_host_takes_part(method, clip):
    """A tensor on the host would be copied to the device, which a capture refuses, or be read as a number."""
    make, stage, options = METHODS[method]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="a global norm clip")
        params = [torch.nn.Parameter(torch.empty(shape, device="meta")) for shape in SHAPES[:3]]
        lr = torch.empty((), device="meta")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(groups, "float", lambda x: 1.0, raising=False)  # the check of a learning rate on `meta`
            optimizer = make(params, lr, capturable=True, **{**options, stage: clip})
    for recorded in (False, True):
        for p in params:
            p.grad = torch.empty_like(p)
        with Places() as places:
            optimizer.step()
        if recorded:
            assert places.found == {"meta"}


@pytest.mark.parametrize("clip", [None, ec.smooth(0.9), RUNNING], ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_capturable_steps_are_ordinary_ones(method, clip):
    """On the CPU, whose path keeps to torch's operations; constants made in fp64 keep them within rounding."""
    make, stage, options = METHODS[method]
    shapes = SHAPES[:3] if "muon" in method else SHAPES
    ordinary, capturable = (
        Training(lambda params, lr, on=on: make(params, lr, capturable=on, **{**options, stage: clip}), shapes)
        for on in (False, True)
    )
    for seed in range(10):
        for each in (ordinary, capturable):
            each.set_step(seed)
            each.optimizer.step()
    for a, b in zip(ordinary.everything(), capturable.everything(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-6, atol=1e-6)


@pytest.fixture
def capturing(monkeypatch, as_on_a_device):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"capturable": False}, "make the optimizer with capturable=True"),
        ({"nonfinite": "skip"}, 'set nonfinite="propagate"'),
        ({"nonfinite": "raise"}, 'set nonfinite="propagate"'),
        ({}, "take a step or two outside of the graph"),
    ],
    ids=str,
)
def test_captures_that_are_refused(options, remedy, capturing):
    training = Training(lambda params, lr: optim.AdamW(params, lr, **{"capturable": True, **options}), SHAPES)
    before = [p.clone() for p in training.params]
    with pytest.raises(RuntimeError, match=remedy):
        training.optimizer.step()
    if options:  # a step that was to be captured for the first time has run: the host cannot tell before
        assert all(torch.equal(a, b) for a, b in zip(before, training.params, strict=True))
    assert not any(training.optimizer.state[p] for p in training.params)


def test_captures_refused_for_tensors_on_the_host(capturing, monkeypatch):
    training = Training(lambda params, lr: optim.AdamW(params, lr, capturable=True), SHAPES)
    monkeypatch.setattr(capture, "on_device", lambda x: x is not training.lr)
    with pytest.raises(RuntimeError, match="lr is a tensor on the CPU"):
        training.optimizer.step()
    monkeypatch.setattr(capture, "on_device", lambda x: x is not training.params[1])
    with pytest.raises(RuntimeError, match="group 0 parameter 1 is on the CPU"):
        training.optimizer.step()
    monkeypatch.setattr(capture, "on_device", lambda x: x is not training.optimizer.param_groups[0]["steps"])
    with pytest.raises(RuntimeError, match="step counter of parameter group 0 parameter 0 is on the host"):
        training.optimizer.step()


def test_a_warm_optimizer_may_be_captured(capturing, monkeypatch):
    training = Training(lambda params, lr: optim.AdamW(params, lr, capturable=True, post=RUNNING), SHAPES)
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        training.eager_step(0)
    training.eager_step(1)
    assert {float(training.optimizer.state[p]["step"]) for p in training.params} == {2.0}
    training.optimizer.param_groups[0]["post"] = ec.Clip(ec.hard_clip, ec.Running(ec.Quantile(0.9), beta=0.8))
    training.optimizer.param_groups[0]["amsgrad"] = True
    with pytest.raises(RuntimeError, match="made max_exp_avg_sq of parameter group 0 parameter 0 anew"):
        training.eager_step(2)


def test_clips_that_keep_their_memory_elsewhere_are_not_captured(capturing):
    w = torch.nn.Parameter(torch.ones(4, 4))
    w.grad = torch.ones(4, 4)
    for clip in (ec.smooth(0.9), RUNNING):
        optimizer, mean = torch.optim.SGD([w]), optim.ClippedMean([w], clip)
        attached = optim.attach(optimizer, grad=clip)
        for use in (
            lambda attached=attached: attached._attachment._clipped(w, w.grad, 0.1),
            lambda m=mean: m._clipped(w, w.grad),
        ):
            if clip.has_memory:
                with pytest.raises(RuntimeError, match="has memory, which a CUDA graph would not carry on"):
                    use()
            else:
                assert torch.equal(use(), clip(w.grad))


@pytest.mark.parametrize("saved", [False, True])
def test_checkpoints_of_the_other_setting(saved):
    """The live setting stays, unlike in torch, and the counters go to where it wants them."""
    training = Training(lambda params, lr: optim.AdamW(params, float(lr), capturable=saved), SHAPES)
    for seed in range(3):
        training.set_step(seed)
        training.optimizer.step()
    elsewhere = [torch.nn.Parameter(p.detach().to("meta")) for p in training.params]
    fresh = optim.AdamW(elsewhere, capturable=not saved)
    fresh.load_state_dict(copy.deepcopy(training.optimizer.state_dict()))
    assert fresh.param_groups[0]["capturable"] is not saved
    home = "cpu" if saved else "meta"
    assert {fresh.state[p]["step"].device.type for p in elsewhere} == {home}
    here = copy.deepcopy(training.params)
    again = optim.AdamW(here, capturable=not saved)
    again.load_state_dict(copy.deepcopy(training.optimizer.state_dict()))
    for p, q in zip(here, training.params, strict=True):
        p.grad = q.grad
    training.optimizer.step()
    again.step()
    assert int(again.param_groups[0]["steps"]) == 4
    for p, q in zip(here, training.params, strict=True):
        assert float(again.state[p]["step"]) == 4.0
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-7)


def test_counters_follow_the_setting():
    """Also one that is changed between steps."""
    params = [torch.nn.Parameter(torch.empty(shape, device="meta")) for shape in SHAPES]
    optimizer = optim.AdamW(params)
    for on, home in ((False, "cpu"), (True, "meta")):
        optimizer.param_groups[0]["capturable"] = on
        for p in params:
            p.grad = torch.empty_like(p)
        optimizer.step()
        assert {optimizer.state[p]["step"].device.type for p in params} == {home}
        assert optimizer.param_groups[0]["steps"].device.type == home


def test_every_optimizer_takes_the_option():
    model = torch.nn.Linear(4, 4)
    w = model.weight
    made = [make([w], capturable=True) for make in (optim.SGD, optim.AdamW, optim.Muon, optim.AdaMuon, optim.spectra)]
    for optimizer in (*made, optim.root([w], capturable=True), optim.build(model, capturable=True)):
        assert all(group["capturable"] is True for group in optimizer.param_groups)
    assert optim.AdamW([w]).param_groups[0]["capturable"] is False
    with pytest.raises(TypeError, match="capturable must be True or False, got None"):
        optim.AdamW([w], capturable=None)
