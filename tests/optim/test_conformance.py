"""check_optimizer lets ours through and catches each way of going wrong."""

import pytest
import torch

from entryclip import standardized
from entryclip.optim import SGD, AdaMuon, AdamW, Muon
from entryclip.optim.direction import Direction
from entryclip.optim.methods.adamw import AdamWMethod
from entryclip.testing import check_optimizer


def sgd_with_momentum(params, **options):
    return SGD(params, momentum=0.9, **options)


def adamw_fused(params, **options):
    return AdamW(params, **{"fused": True, **options})


def muon_standardized(params, **options):
    return Muon(params, pre=standardized(), **options)


@pytest.mark.filterwarnings("ignore:fused=True has no kernel for SGD on a CPU")
@pytest.mark.parametrize("make", [SGD, sgd_with_momentum, AdamW, adamw_fused, Muon, muon_standardized, AdaMuon])
def test_ours_conform(make):
    check_optimizer(make)


class IgnoresItsClip(AdamW):
    def _clip(self, stage, params, xs, group, owned=False):
        return xs


class DecayInTheDirection(AdamWMethod):
    def decay_(self, w, group):
        pass

    def direction(self, g, w, state, group):
        return Direction(super().direction(g, w, state, group).tensor() + group["weight_decay"] * w)


class ClipsTheDecay(AdamW):
    method = DecayInTheDirection()


class WritesTheGradient(AdamW):
    def _advance(self, params, group, method):
        for p in params:
            p.grad.mul_(2.0)
        return super()._advance(params, group, method)


class OneDecayForAll(AdamWMethod):
    def decay_(self, w, group):
        w.mul_(1 - group["lr"] * 0.01)


class ForgetsTheGroup(AdamW):
    method = OneDecayForAll()


class ForgetsItsState(AdamW):
    def state_dict(self):
        saved = super().state_dict()
        saved["state"] = {}
        return saved


class HidesOverflows(AdamW):
    def _advance(self, params, group, method):
        grads = [p.grad for p in params]
        for p in params:
            p.grad = torch.nan_to_num(p.grad)
        directions = super()._advance(params, group, method)
        for p, grad in zip(params, grads, strict=True):
            p.grad = grad
        return directions


class SwallowsTheLoss(AdamW):
    def step(self, closure=None):
        super().step(closure)


class Ratio(AdamWMethod):
    def update_(self, g, w, state, group):
        super().update_(g, w, state, group)
        state["ratio"] = g / g


class DividesByZero(AdamW):
    method = Ratio()


class TakesStrings(AdamW):
    def __init__(self, params, lr=1e-3, **options):
        super().__init__(params, float(lr) if isinstance(lr, str) else lr, **options)


class LosesShapes(AdamW):
    def step(self, closure=None):
        for group in self.param_groups:
            if isinstance(group["lr"], torch.Tensor) and group["lr"].ndim:
                raise TypeError("alpha must be a number")
        return super().step(closure)


class CountsInTensors(AdamW):
    def load_state_dict(self, state_dict):
        for state in state_dict["state"].values():
            state["step"].add_(0)
        super().load_state_dict(state_dict)


class IgnoresSchedulers(AdamW):
    def step(self, closure=None):
        for group in self.param_groups:
            group["betas"] = (0.9, 0.999)
        return super().step(closure)


class ForgetsAttributes(AdamW):
    def __getstate__(self):
        return torch.optim.Optimizer.__getstate__(self)


class SaysTypeError(AdamW):
    def step(self, closure=None):
        grad = self.param_groups[0]["params"][0].grad
        if grad is not None and grad.is_sparse:
            raise TypeError("no sparse gradients")
        return super().step(closure)


class ClipsNothing(AdamW):
    def step(self, closure=None):
        if all(p.ndim < 2 for p in self.param_groups[0]["params"]):
            return None
        return super().step(closure)


class StepsNothing(AdamW):
    def step(self, closure=None):
        params = self.param_groups[0]["params"]
        return None if params[0].is_meta else super().step(closure)


@pytest.mark.parametrize(
    ("make", "law"),
    [
        (CountsInTensors, "goes on from a step that is a number"),
        (IgnoresSchedulers, "lets schedulers cycle its momentum"),
        (ForgetsAttributes, "keeps public attributes in a copy"),
        (SaysTypeError, "refuses odd gradients as torch does"),
        (ClipsNothing, "refuses flattened parameters. a flat piece in place of matrices was accepted"),
        (StepsNothing, "refuses a fused step without memory"),
        (TakesStrings, "refuses a learning rate that is no number. lr='0.1' was accepted"),
        (LosesShapes, "takes a tensor as learning rate. TypeError: alpha must be a number"),
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
