import pytest
import torch
from torch import nn

from entryclip.diagnostics.probe.gradients import SampleGradients, preserved


def test_sparse_and_missing_gradients_are_dense():
    model = nn.ModuleDict({"used": nn.Embedding(6, 2, sparse=True), "unused": nn.Linear(2, 2, bias=False)})
    with preserved(model):
        found = SampleGradients(model, lambda m, x: m["used"](x).sum(), ["used.weight", "unused.weight"])(
            0, torch.tensor([4, 4])
        )
    assert found["used.weight"].tolist() == [[0, 0]] * 4 + [[2, 2], [0, 0]]
    assert found["unused.weight"].tolist() == [[0, 0], [0, 0]]


def test_half_precision_comes_in_single():
    model = nn.Linear(3, 3, bias=False).bfloat16()
    with preserved(model):
        found = SampleGradients(model, lambda m, x: m(x).sum(), ["weight"])(0, torch.ones(1, 3).bfloat16())
    assert found["weight"].dtype == torch.float32


@torch.no_grad()
def test_also_inside_no_grad():
    model = nn.Linear(3, 3, bias=False)
    with preserved(model):
        assert SampleGradients(model, lambda m, x: m(x).sum(), ["weight"])(0, torch.ones(1, 3)) is not None


def test_large_finite_gradients_are_not_taken_for_bad_ones():
    """Their sum overflows; they do not."""
    model = nn.Linear(3, 3, bias=False)
    nn.init.zeros_(model.weight)  # or the loss might
    with preserved(model):
        gradients = SampleGradients(model, lambda m, x: m(x).sum(), ["weight"])
        assert gradients(0, torch.full((1, 3), 2e38)) is not None
    assert gradients.bad == {}


def test_a_replaced_buffer_is_put_back():
    model = nn.BatchNorm1d(3)
    kept = model.running_mean
    with preserved(model):
        model.running_mean = torch.ones(3)
        kept.fill_(7)
    assert model.running_mean is kept
    assert kept.tolist() == [0, 0, 0]


def test_gradients_are_put_aside_and_back():
    model = nn.Linear(3, 3)
    model.weight.grad = kept = torch.ones(3, 3)
    inside = None

    def fails():
        nonlocal inside
        with preserved(model):
            inside = model.weight.grad
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert inside is None
    assert model.weight.grad is kept
    assert model.bias.grad is None
