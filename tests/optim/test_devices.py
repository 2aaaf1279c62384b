"""Guards for parameters on a device: no needless compiler, a model that moves, and CUDA graphs."""

import copy
import warnings

import pytest
import torch

import entryclip as ec
from entryclip import optim
from entryclip.optim.kernels import backends, compiler, cpu

RUNNING = ec.Clip(ec.smooth_shrinkage, ec.Running(ec.Quantile(0.9), beta=0.9))


def stepped(model, optimizer):
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()


@pytest.fixture
def no_compiler(monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(compiler.shutil, "which", lambda name: None)
    compiler.library.cache_clear()
    cpu.load_library.cache_clear()
    yield
    compiler.library.cache_clear()
    cpu.load_library.cache_clear()


@pytest.mark.filterwarnings("ignore")
def test_fused_on_a_device_needs_no_compiler(no_compiler):
    model = torch.nn.Linear(4, 3, device="meta")
    optimizer = optim.AdamW(model.parameters(), fused=True)
    stepped(model, optimizer)
    assert optimizer.state[model.weight]["exp_avg"].is_meta


def test_a_model_that_moves_before_its_first_step():
    """The checks of `fused=True` are made again, once, and the state is made where the parameters are."""
    backends._load.cache_clear()  # it warns once in a process
    model = torch.nn.Linear(4, 3)
    optimizer = optim.AdamW(model.parameters(), fused=True)
    model.to("meta")
    parameters = list(model.parameters())
    optimizer.param_groups[0]["params"][:] = parameters  # a real device keeps the Parameter objects; `meta` does not
    with pytest.warns(UserWarning, match="fused"):
        stepped(model, optimizer)
    stepped(model, optimizer)
    assert all(optimizer.state[p]["exp_avg"].is_meta for p in parameters)


@pytest.mark.parametrize("fused", [False, True])
def test_a_model_that_moves_after_a_step(fused):
    """Its state follows, with one warning. A parameter on `meta` takes the place of the one that moved."""
    model = torch.nn.Linear(4, 3)
    optimizer = optim.AdamW(model.parameters(), fused=fused, post=RUNNING)
    stepped(model, optimizer)
    w = model.weight
    for key in ("exp_avg", "exp_avg_sq", "post_average", "post_valid"):
        assert optimizer.state[w][key].device.type == "cpu"
    moved = torch.nn.Parameter(torch.empty(w.shape, device="meta"))
    optimizer.param_groups[0]["params"][0] = moved
    optimizer.state[moved] = optimizer.state.pop(w)
    moved.grad = torch.empty_like(moved)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.step()
    assert sum("moved from cpu to meta" in str(warning.message) for warning in caught) == 1
    state = optimizer.state[moved]
    assert {key: value.device.type for key, value in state.items()} == {
        key: "cpu" if key == "step" else "meta" for key in state
    }
    optimizer.step()  # warnings are errors: nothing more to say


def test_copies_check_anew():
    model = torch.nn.Linear(4, 3)
    optimizer = copy.deepcopy(optim.AdamW(model.parameters(), fused=True))
    for p in optimizer.param_groups[0]["params"]:
        p.grad = torch.ones_like(p)
    optimizer.step()
    optimizer.step()


def test_a_captured_step_is_refused(monkeypatch):
    model = torch.nn.Linear(4, 3)
    optimizer = optim.AdamW(model.parameters())
    stepped(model, optimizer)
    before = model.weight.clone()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="capturable"):
        stepped(model, optimizer)
    assert torch.equal(model.weight, before)
    assert int(optimizer.param_groups[0]["steps"]) == 1
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    stepped(model, optimizer)
