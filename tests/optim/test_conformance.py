"""check_optimizer lets ours through and catches each way of going wrong."""

import pytest
import torch

import entryclip as ec
from entryclip.optim import SGD, AdaMuon, AdamW, Muon
from entryclip.testing import check_optimizer


def sgd_with_momentum(params, **options):
    return SGD(params, momentum=0.9, **options)


@pytest.mark.parametrize("make", [SGD, sgd_with_momentum, AdamW, Muon, AdaMuon])
def test_ours_conform(make):
    check_optimizer(make)


class IgnoresItsClip(AdamW):
    def _clip(self, stage, p, x, group, owned=False):
        return x


class ClipsTheDecay(AdamW):
    @staticmethod
    def decay_(p, group):
        pass

    @staticmethod
    def direction(g, p, state, group):
        d = AdamW.direction(g, p, state, group)
        return ec.optim.direction.Direction(d.tensor() + group["weight_decay"] * p)


class WritesTheGradient(AdamW):
    def _advance(self, p, group, method):
        p.grad.mul_(2.0)
        return super()._advance(p, group, method)


class ForgetsTheGroup(AdamW):
    @staticmethod
    def decay_(p, group):
        p.mul_(1 - group["lr"] * 0.01)


class ForgetsItsState(AdamW):
    def state_dict(self):
        saved = super().state_dict()
        saved["state"] = {}
        return saved


class HidesOverflows(AdamW):
    def _advance(self, p, group, method):
        grad, p.grad = p.grad, torch.nan_to_num(p.grad)
        direction = super()._advance(p, group, method)
        p.grad = grad
        return direction


class SwallowsTheLoss(AdamW):
    def step(self, closure=None):
        super().step(closure)


class DividesByZero(AdamW):
    @staticmethod
    def update_(g, p, state, group):
        AdamW.update_(g, p, state, group)
        state["ratio"] = g / g


@pytest.mark.parametrize(
    ("make", "law"),
    [
        (IgnoresItsClip, "clips the update not the decay"),
        (ClipsTheDecay, "obeys each group|clips the update not the decay"),
        (WritesTheGradient, "reads gradients only"),
        (ForgetsTheGroup, "obeys each group"),
        (ForgetsItsState, "goes on from a checkpoint"),
        (HidesOverflows, "shows an overflow"),
        (SwallowsTheLoss, "calls a closure"),
        (DividesByZero, "stands still at zero"),
    ],
)
def test_broken_ones_are_caught(make, law):
    with pytest.raises(AssertionError, match=law):
        check_optimizer(make)
