"""A capturable step of the Triton backend in the interpreter: launches are recorded and run again, as a graph does.

test_gpu.py starts this file in a process of its own, as it does test_interpreted.py.
"""

import gc
import os
import sys
import weakref
from pathlib import Path

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs TRITON_INTERPRET=1: test_gpu.py runs this file with it", allow_module_level=True)
pytest.importorskip("triton")

sys.path.insert(0, str(Path(__file__).parents[1]))

from launches import VIEWS
from recorder import Recorder
from test_capture import gradients
from test_interpreted import LargeBackend, _fast_calls, with_backend  # noqa: F401
from torch.utils._python_dispatch import _disable_current_modes

import entryclip as ec
from entryclip.optim import capture

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
SHAPES = [(2, 6, 8), (5,)]
RUNNING = ec.Clip(ec.smooth_shrinkage, ec.Running(ec.Quantile(0.9), beta=0.8))
FOLLOWING = ec.Clip(ec.hard_clip, ec.FollowLR(ec.Fixed(1.0), base_lr=1e-2))


class RecordedBackend(LargeBackend):
    """The backend, whose launches a recorder keeps."""

    recorder: Recorder | None = None

    def launch(self, kernel, programs, *arguments, **constants):
        def launch():
            LargeBackend.launch(self, kernel, programs, *arguments, **constants)

        with _disable_current_modes():  # the interpreter's own operations are not those of the step
            launch() if RecordedBackend.recorder is None else RecordedBackend.recorder.launch(launch)


class Training:
    def __init__(self, clip, *, capturable=True, make=ec.optim.AdamW, shapes=SHAPES, dtype=torch.float32, **options):
        self.shapes = shapes
        self.params = [torch.nn.Parameter(g.to(dtype)) for g in gradients(shapes, 0)]
        self.lr = torch.tensor(1e-2)
        stage = "pre" if make is ec.optim.Muon else "post"
        options = {stage: clip, "capturable": capturable, **options}
        self.optimizer = make(self.params, self.lr, fused=True, **options, weight_decay=0.1)

    def set_step(self, seed, *, anew=False):
        """Write this step's gradients to where the last ones were, or into new tensors, as after `set_to_none`."""
        for p, g in zip(self.params, gradients(self.shapes, seed), strict=True):
            g = g.to(p.dtype)
            p.grad = g if anew or p.grad is None else p.grad.copy_(g)
        self.lr.fill_(1e-2 / (1 + seed))

    def eager_step(self, seed):
        self.set_step(seed, anew=True)
        with_backend(self.optimizer.step, RecordedBackend)

    def captured_step(self):
        """Take a step that is also recorded, as during a capture."""
        with pytest.MonkeyPatch.context() as patch, Recorder() as recorder:
            patch.setattr(torch.cuda, "is_available", lambda: True)
            patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
            patch.setattr(capture, "on_device", lambda x: True)
            patch.setattr(RecordedBackend, "recorder", recorder)
            with_backend(self.optimizer.step, RecordedBackend)
        return recorder

    def everything(self):
        return [*self.params, *(value for p in self.params for _, value in sorted(self.optimizer.state[p].items()))]


def assert_equal(a, b):
    for x, y in zip(a.everything(), b.everything(), strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize(("clip", "limit"), [(None, 23), (ec.smooth(0.9), 40), (FOLLOWING, 35), (RUNNING, 66)], ids=str)
def test_a_replay_is_an_eager_step(clip, limit):
    """With a learning rate that changes, gradients that were made anew for the capture, and few launches."""
    eager, graph = Training(clip), Training(clip)
    for each in (eager, graph):
        each.eager_step(0)
    graph.set_step(1, anew=True)
    recorder = graph.captured_step()
    for seed in (2, 3):
        graph.set_step(seed)
        recorder.replay()
    for seed in (1, 2, 3):
        eager.eager_step(seed)
    assert_equal(eager, graph)
    names = [getattr(call[0], "overloadpacket", call[0]).__name__ for call in recorder.calls]
    assert len([name for name in names if name not in VIEWS and not name.startswith("_record_function")]) <= limit
    assert [float(graph.optimizer.state[p]["step"]) for p in graph.params] == [4.0] * 2


@pytest.mark.parametrize("rule", [ec.Quantile(0.9), FOLLOWING.rule, RUNNING.rule], ids=str)
@pytest.mark.parametrize("preserve_rms", [False, True])
def test_a_replay_in_half_precision_is_an_eager_step(rule, preserve_rms):
    """With a root mean square that is measured first, the weights move after the threshold, also where it is known."""
    clip = ec.Clip(ec.smooth_shrinkage, rule, preserve_rms=preserve_rms)
    trainings = [Training(clip, dtype=torch.bfloat16, fp32_state=True, capturable=i < 2) for i in range(3)]
    eager, graph, ordinary = trainings
    for each in trainings:
        each.eager_step(0)
    graph.set_step(1, anew=True)
    recorder = graph.captured_step()
    for seed in (2, 3):
        graph.set_step(seed)
        recorder.replay()
    for seed in (1, 2, 3):
        eager.eager_step(seed)
        ordinary.eager_step(seed)
    assert not graph.optimizer._fused[0].rest
    assert_equal(eager, graph)
    for p, q in zip(ordinary.params, eager.params, strict=True):
        masters = [each.optimizer.state[x]["master"] for each, x in ((ordinary, p), (eager, q))]
        torch.testing.assert_close(*masters, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("clip", [ec.smooth(0.9), FOLLOWING, RUNNING], ids=str)
@pytest.mark.parametrize("make", [ec.optim.Muon, ec.optim.SGD])
@pytest.mark.filterwarnings("ignore:.*no kernel for SGD on a CPU")
def test_a_replay_with_momentum_is_an_eager_step(make, clip):
    """A plan of SGD is there after the second step: the first makes the momentum."""
    options = {"make": make, "shapes": [(2, 6, 8), (6, 8)], "momentum": 0.9}
    eager, graph, ordinary = (
        Training(clip, **options),
        Training(clip, **options),
        Training(clip, capturable=False, **options),
    )
    for seed in range(2):
        graph.eager_step(seed)
    graph.set_step(2, anew=True)
    recorder = graph.captured_step()
    assert not graph.optimizer._fused[0].rest
    for seed in (3, 4):
        graph.set_step(seed)
        recorder.replay()
    for seed in range(5):
        eager.eager_step(seed)
        ordinary.eager_step(seed)
    assert_equal(eager, graph)
    for a, b in zip(ordinary.everything(), eager.everything(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-6)


def test_a_capturable_step_is_an_ordinary_one():
    clip = ec.Clip(ec.smooth_shrinkage, ec.FollowLR(ec.Running(ec.Quantile(0.9), beta=0.8), base_lr=1e-2))
    ordinary, capturable = Training(clip, capturable=False), Training(clip)
    for seed in range(5):
        ordinary.eager_step(seed)
        capturable.eager_step(seed)
    for a, b in zip(ordinary.everything(), capturable.everything(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-6, atol=1e-6)


def test_eager_steps_between_replays_leave_the_graph_as_it_was():
    """An eager step with other gradients, weight decay and plan must not change what a replay reads."""
    eager, graph = Training(ec.smooth(0.9)), Training(ec.smooth(0.9))
    for each in (eager, graph):
        each.eager_step(0)
    graph.set_step(1, anew=True)
    recorder, static = graph.captured_step(), [p.grad for p in graph.params]
    eager.eager_step(1)
    for each in (eager, graph):
        each.optimizer.param_groups[0]["weight_decay"] = 0.5
        each.eager_step(2)
        each.optimizer.param_groups[0]["post"] = RUNNING  # a new plan and a new backend
        each.eager_step(3)
        each.optimizer.param_groups[0].update(post=ec.smooth(0.9), weight_decay=0.1)
    for p, grad in zip(graph.params, static, strict=True):
        p.grad = grad
    graph.set_step(4)
    recorder.replay()
    eager.eager_step(4)
    assert_equal(eager, graph)


def test_a_capture_needs_a_step_before():
    graph = Training(ec.smooth(0.9))
    graph.set_step(0)
    with pytest.raises(RuntimeError, match="not made for these parameters and options yet"):
        graph.captured_step()
    graph.eager_step(0)
    graph.captured_step()
    with pytest.raises(RuntimeError, match="no pinned memory left"):
        graph.captured_step()


def test_memory_that_a_graph_works_in_is_kept():
    """A graph knows addresses only: the backend that it was captured with must live as long as the optimizer."""
    graph = Training(None)
    graph.eager_step(0)
    graph.captured_step()
    captured = weakref.ref(RecordedBackend.last)
    graph.optimizer.param_groups[0]["post"] = FOLLOWING
    graph.eager_step(1)  # with a new plan and a new backend
    gc.collect()
    assert RecordedBackend.last is not captured()
    assert captured() is not None


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_training_step_runs_the_kernels():
    """The compiler leaves the optimizer's step out of its graphs, so that the kernels run as in an eager step."""
    eager, compiled = Training(FOLLOWING, capturable=False), Training(FOLLOWING, capturable=False)

    def step_of(training):
        def step(x):
            loss = sum((p * x).tanh().sum() for p in training.params)
            loss.backward()
            training.optimizer.step()
            training.optimizer.zero_grad()
            return loss

        return step

    torch._dynamo.reset()
    steps = [step_of(eager), torch.compile(step_of(compiled), backend="eager")]
    for number in range(3):
        x = torch.tensor(1.0 + number)
        losses = [with_backend(lambda step=step, x=x: step(x), RecordedBackend) for step in steps]
        torch.testing.assert_close(*losses, rtol=1e-6, atol=1e-6)
    assert RecordedBackend.last.launches == 3 * ["walk"]
    for a, b in zip(eager.everything(), compiled.everything(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-6, atol=1e-6)
