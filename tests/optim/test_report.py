import copy

import pytest
import torch
from accelerate import Accelerator

import entryclip as ec
from entryclip import optim
from entryclip.optim.direction import Direction

FIXED = ec.Clip(ec.smooth_shrinkage, ec.Fixed(2.0))


def spiked(shape, place, value=500.0):
    g = 0.5 * torch.ones(shape)
    g[place] = value
    return g


@pytest.mark.parametrize(
    ("make", "stage"),
    [
        (lambda p: optim.SGD(p, grad=FIXED), "grad"),
        (lambda p: optim.SGD(p, post=FIXED), "post"),
        (lambda p: optim.SGD(p, momentum=0.9, post=FIXED), "post"),
        (lambda p: optim.Muon(p, momentum=0.0, pre=FIXED), "pre"),
    ],
)
def test_names_the_entry_that_did_it(make, stage):
    w, v = torch.nn.Parameter(torch.zeros(30, 40)), torch.nn.Parameter(torch.zeros(3, 20, 20))
    optimizer = make([("layer.w", w), ("layer.v", v)])
    assert str(optimizer.clip_report()).startswith("nothing was clipped")
    w.grad, v.grad = spiked(w.shape, (12, 9)), spiked(v.shape, (1, 2, 3), 900.0)
    optimizer.step()
    before = copy.deepcopy(optimizer.state_dict()["state"])
    worst, other = optimizer.clip_report()
    assert (worst.name, worst.stage, worst.place, worst.largest) == ("layer.v", stage, (1, 2, 3), pytest.approx(450))
    assert (other.name, other.place, other.threshold) == ("layer.w", (12, 9), 2.0)
    assert other.damped == pytest.approx(1 / 1200)
    clipped = FIXED(w.grad)
    assert other.rms_kept == pytest.approx(float(clipped.norm() / w.grad.norm()), rel=1e-5)
    assert "layer.v" in str(worst)
    assert "index 1, 2, 3: 450 x threshold 2" in str(worst)
    after = optimizer.state_dict()["state"]  # asking changes nothing
    assert all(torch.equal(before[i][key], after[i][key]) for i in before for key in before[i])


def test_what_rests_on_moments_needs_no_gradient():
    w = torch.nn.Parameter(torch.zeros(30, 40))
    optimizer = optim.AdamW([w], grad=ec.hard(0.9))
    w.grad = torch.randn(30, 40, generator=torch.Generator().manual_seed(0))
    optimizer.step()
    assert [row.stage for row in optimizer.clip_report()] == ["grad", "post"] or len(optimizer.clip_report()) == 2
    optimizer.zero_grad()
    (row,) = optimizer.clip_report()
    assert row.stage == "post"
    assert row.name == "group 0 parameter 0"
    assert 0.3 < row.rms_kept < 0.7
    assert len(optimizer.clip_report(top=0)) == 0


@pytest.mark.parametrize(
    "wrap", [lambda optimizer: optimizer, lambda optimizer: Accelerator(cpu=True).prepare(optimizer)]
)
def test_the_entry_of_a_gradient_that_adam_hides(wrap):
    """A spike of 1000 leaves the update at 1: the gradient's outliers name it, also in a wrapped optimizer."""
    model = torch.nn.Linear(64, 32)
    optimizer = wrap(optim.AdamW(model.named_parameters()))
    g = torch.Generator().manual_seed(0)
    for step in range(2):
        model.weight.grad = torch.randn(32, 64, generator=g) * torch.linspace(0.1, 10, 32)[:, None]
        if step == 1:
            model.weight.grad[0, 50] = -100.0  # not the largest entry beside row 31's by much, and 1000 of its own row
        model.bias.grad = torch.ones(32)
        optimizer.step()
        report = optim.clip_report(optimizer, batch=step)
        assert bool(report.outliers) == (step == 1)
    (outlier,) = report.outliers
    assert (outlier.name, outlier.place, outlier.value) == ("weight", (0, 50), -100.0)
    assert outlier.scales == pytest.approx(1000, rel=0.3)
    assert str(report).startswith("batch 1, weight (gradient) row 0 col 50: -100, ")
    assert report.metrics()["clip/outlier_scales"] == outlier.scales
    assert 0.3 < report.metrics()["clip/rms_kept"] < 0.8


def test_an_entry_that_is_not_finite_is_named():
    w = torch.nn.Parameter(torch.zeros(30, 40))
    w.grad = torch.ones(30, 40)
    w.grad[3, 7] = float("inf")
    (outlier,) = optim.clip_report(torch.optim.SGD([("w", w)])).outliers
    assert str(outlier) == "w (gradient) row 3 col 7: inf, inf x its scale"


@pytest.mark.parametrize(
    ("shape", "options", "place"),
    [
        ((16, 48), {"transposed": True, "blocks": 3}, (5, 40)),
        ((16, 48), {"transposed": True}, (5, 40)),
        ((48, 16), {"blocks": 3}, (40, 5)),
        ((30, 4, 3, 3), {"flatten": True}, (7, 2, 1, 0)),
        ((4, 30, 3, 3), {"flatten": True, "transposed": True}, (2, 7, 1, 0)),
        ((3, 20, 25), {}, (2, 11, 13)),
    ],
)
def test_places_are_those_of_the_parameter(shape, options, place):
    w = torch.nn.Parameter(torch.zeros(shape))
    optimizer = optim.Staged([{"params": [w], "method": "sgd", "grad": ec.smooth(0.9), **options}])
    w.grad = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    w.grad[place] = 1e4
    report = optimizer.clip_report()
    assert [row.place for row in report] == [place]
    assert [outlier.place for outlier in report.outliers] == [place]


def test_remembered_thresholds_are_shown():
    w = torch.nn.Parameter(torch.zeros(4, 4))
    optimizer = optim.SGD([w], post=ec.Clip(ec.hard_clip, ec.Running(ec.Quantile(1.0), beta=0.5)))
    for size in (1.0, 3.0):
        w.grad = size * torch.ones(4, 4)
        optimizer.step()
    (row,) = optimizer.clip_report()
    assert row.threshold == 2.0
    assert row.largest == 1.5


@pytest.mark.parametrize("make", [optim.Muon, optim.AdaMuon])
def test_a_clip_after_the_matrix_sign_is_shown(make):
    """The report goes through the matrix sign as the step does, and changes nothing."""
    w = torch.nn.Parameter(torch.zeros(8, 8))
    optimizer = make([w], lr=1.0, weight_decay=0.0, post=ec.Clip(ec.hard_clip, ec.Fixed(1e-3)))
    w.grad = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    optimizer.step()
    state = copy.deepcopy(optimizer.state_dict()["state"][0])
    rows = {row.stage: row for row in optimizer.clip_report()}
    assert set(rows) == {"post"} | ({"pre"} if make is optim.Muon else set())
    assert rows["post"].threshold == pytest.approx(1e-3)
    free = make([torch.nn.Parameter(torch.zeros(8, 8))], lr=1.0, weight_decay=0.0)
    (v,) = free.param_groups[0]["params"]
    v.grad = w.grad
    free.step()
    assert rows["post"].largest == pytest.approx(float(v.detach().abs().max()) / 1e-3, rel=1e-4)
    after = optimizer.state_dict()["state"][0]
    assert all(torch.equal(state[key], after[key]) for key in state)


def test_without_a_gradient_no_direction_is_made_up():
    w = torch.nn.Parameter(torch.ones(4, 4))
    for make in (
        lambda: optim.SGD([w], post=FIXED),
        lambda: optim.SGD([w], momentum=0.9, nesterov=True, post=FIXED),
        lambda: optim.Muon([w], post=FIXED),
    ):
        optimizer = make()
        w.grad = torch.ones(4, 4)
        optimizer.step()
        w.grad = None
        assert optimizer.clip_report() == []


def test_groups_made_by_hand_get_names():
    """From the groups themselves, or from the model that the parameters belong to, in reports and in errors."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    groups = [{"params": [layer.weight], "post": FIXED} for layer in model]
    optimizer = optim.SGD(groups, lr=0.1, nonfinite="raise")
    for layer in model:
        layer.weight.grad = torch.ones(4, 4)
    assert {row.name for row in optimizer.clip_report()} == {"group 0 parameter 0", "group 1 parameter 0"}
    optim.name_parameters(model)
    assert {row.name for row in optimizer.clip_report()} == {"0.weight", "1.weight"}
    model[1].weight.grad[0, 0] = float("nan")
    with pytest.raises(FloatingPointError, match=r"parameter 1\.weight"):
        optimizer.step()
    named = optim.SGD([{"params": [("mine", model[0].weight)], "post": FIXED}])
    assert named.clip_report()[0].name == "mine"  # a group's own names come first


def test_a_direction_can_be_asked_for_twice():
    numerator, denominator = torch.tensor([6.0]), torch.tensor([2.0])
    direction = Direction(numerator, denominator, scale=3.0)
    assert direction.tensor().item() == direction.tensor().item() == 9.0
    assert denominator.item() == 2.0
    assert direction.materialize_().item() == 9.0
