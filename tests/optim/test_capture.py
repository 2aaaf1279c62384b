"""CUDA graphs: a recorded step, run again with other gradients, takes the steps that eager ones take, to the bit."""

import copy

import pytest
import torch
from recorder import Elsewhere, Recorder, record
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import entryclip as ec
from entryclip import optim
from entryclip.optim import capture, device_shrinkage
from entryclip.optim.methods import adamw, muon

SHAPES = [(12, 20), (2, 10, 8), (7,)]
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
    *(ec.Clip(operator, rule) for operator in (ec.smooth_shrinkage, ec.hard_clip) for rule in RULES),
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


@pytest.fixture
def as_on_a_device(monkeypatch):
    """Lets CPU tensors take the device's path."""
    for module in (device_shrinkage, adamw, muon, capture):
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


def check_replays(make, shapes, dtype=torch.float32, warm=2, replays=4):
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


@pytest.mark.parametrize("clip", CLIPS, ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_a_replay_is_an_eager_step(method, clip, as_on_a_device):
    make, stage, options = METHODS[method]
    shapes = SHAPES[:2] if "muon" in method else SHAPES
    options = {**options, **({"pre": None} if make is optim.Muon else {}), stage: clip, "weight_decay": 0.1}
    check_replays(lambda params, lr: make(params, lr, capturable=True, **options), shapes)
