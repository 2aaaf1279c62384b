"""Guards for parameters on a device: no needless compiler, a model that moves, and CUDA graphs."""

import copy
import warnings

import pytest
import torch

import entryclip as ec
from entryclip import optim
from entryclip.optim import staged
from entryclip.optim.kernels import backends, compiler, cpu

RUNNING = ec.Clip(ec.smooth_shrinkage, ec.Running(ec.Quantile(0.9), beta=0.9))


def stepped(model, optimizer):
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()


@pytest.fixture
def meta_as_device(monkeypatch):
    """Let tensors on `meta` stand for tensors on a device: as themselves they are refused."""
    monkeypatch.setattr(staged, "refuse_meta", lambda *_: None)


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
@pytest.mark.usefixtures("meta_as_device")
def test_fused_on_a_device_needs_no_compiler(no_compiler):
    model = torch.nn.Linear(4, 3, device="meta")
    optimizer = optim.AdamW(model.parameters(), fused=True)
    stepped(model, optimizer)
    assert optimizer.state[model.weight]["exp_avg"].is_meta


@pytest.mark.usefixtures("meta_as_device")
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


@pytest.mark.usefixtures("meta_as_device")
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


@pytest.mark.parametrize("kind", [optim.AdamW, optim.SGD, optim.Muon])
@pytest.mark.filterwarnings("ignore:fused=True has no kernel for SGD on a CPU")
def test_fused_without_memory_is_refused_until_there_is_some(kind):
    """As torch's: the optimizer of a model on `meta` can be made, and steps once the model has memory."""
    model = torch.nn.Linear(4, 3, bias=False, device="meta")
    optimizer = kind(model.parameters(), fused=True)
    with pytest.raises(RuntimeError, match=r"parameter .* is on meta, where there is none: .*to_empty\(device"):
        stepped(model, optimizer)
    optimizer.zero_grad()
    model.to_empty(device="cpu")
    torch.nn.init.ones_(model.weight)
    optimizer.param_groups[0]["params"][:] = model.parameters()  # `meta` does not keep the Parameter objects
    stepped(model, optimizer)
    assert (model.weight != 1).all()


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
