"""The one loop of all optimizers: [grad clip] -> moments -> [pre clip] -> msign -> [post clip] -> decay, step.

A param group says which method it follows, so one optimizer can hold Muon and AdamW groups. A method (SGD, AdamW,
Muon) says which buffers it keeps and how a gradient becomes a direction; everything else is here. `p.grad` is read,
never written.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..dtensor import by_owner, is_spread, spread_like, whole
from ..thresholds import Step
from .checkpoint import merged_groups, restore_dtypes
from .direction import Direction, propagated, seen_finite
from .groups import COMMON, HALF, STAGES, Group, check_group, clips, layout_of
from .kernels.fused import Fast
from .report import ClipReport, clip_report, named


class Staged(torch.optim.Optimizer):
    """Param groups, each following its `method` ("sgd", "adamw", "muon", ...) with that method's defaults.

    >>> w, b = torch.nn.Parameter(torch.ones(4, 4)), torch.nn.Parameter(torch.ones(4))
    >>> optimizer = Staged([{"params": [w], "method": "muon", "lr": 0.02}, {"params": [b], "method": "adamw"}])
    >>> [group["lr"] for group in optimizer.param_groups]
    [0.02, 0.001]
    """

    name: ClassVar[str] = "staged"
    methods: ClassVar[dict[str, type["Staged"]]] = {}  # filled by the subclasses
    has_sign: ClassVar[bool] = False  # whether a matrix sign stands between moments and step, so that `pre` exists

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" not in cls.__dict__:  # else a subclass of AdamW would be taken for AdamW
            cls.name = cls.__name__.lower()
        Staged.methods[cls.name] = cls

    def __init__(self, params: Iterable[Any], defaults: Group | None = None):
        self.fast = Fast()
        super().__init__(params, {**COMMON, **(defaults or {})})

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.fast = Fast()

    # What a method says of itself.

    @classmethod
    def options(cls) -> Group:
        """The method's own options with their defaults, `lr` and `weight_decay` among them."""
        raise NotImplementedError

    @staticmethod
    def check(group: Group) -> None:
        """Refuse options that make no sense."""

    @staticmethod
    def update_(g: Tensor, p: Tensor, state: dict[str, Any], group: Group) -> None:
        """Take the gradient into the buffers of `state`, made on first use."""
        raise NotImplementedError

    @staticmethod
    def direction(g: Tensor, p: Tensor, state: dict[str, Any], group: Group) -> Direction:
        """The direction from the buffers as they are; nothing is changed."""
        raise NotImplementedError

    @staticmethod
    def ready(g: Tensor | None, state: dict[str, Any], group: Group) -> bool:
        """Whether `direction` can be told from these: the buffers exist, and the gradient where it is read."""
        return "momentum_buffer" in state and (g is not None or not group["nesterov"])

    @staticmethod
    def sign(m: Tensor, group: Group) -> Tensor:
        """The matrix sign of a method that has one."""
        raise NotImplementedError

    @staticmethod
    def after_sign(o: Tensor, p: Tensor, state: dict[str, Any], group: Group) -> Tensor:
        """What a method makes of its matrix sign; by default nothing."""
        return o

    @staticmethod
    def decay_(p: Tensor, group: Group) -> None:
        """Decoupled weight decay; it is never clipped and has the plain learning rate."""
        if group["weight_decay"] != 0:
            p.mul_(1 - group["lr"] * group["weight_decay"])

    @classmethod
    def fused_step(cls, optimizer: "Staged", params: list[Tensor], group: Group) -> list[Tensor]:
        """The whole step by a method's fast path; returns the parameters for which there is none."""
        return params

    # The loop.

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; `closure`, if given, computes the loss and the gradients first."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            group["steps"].add_(1)  # a tensor: a number would make torch.compile begin anew at every step
        if not self._may_proceed():
            return loss
        for group in self.param_groups:
            method, params = self.methods[group["method"]], [p for p in group["params"] if p.grad is not None]
            if group["fused"]:
                params = method.fused_step(self, params, group)
            for batch in method.batches(params):
                self._step_together(batch, group, method)
        return loss

    @classmethod
    def batches(cls, params: list[Tensor]) -> Iterator[list[Tensor]]:
        """The parameters one by one; a method may take some together."""
        yield from ([p] for p in params)

    def _step_together(self, params: list[Tensor], group: Group, method: type["Staged"]) -> None:
        directions = [self._advance(p, group, method) for p in params]
        if method.has_sign:
            directions = self._orthogonalized(params, directions, group, method)
        for p, direction in zip(params, directions, strict=True):
            if clips(group, "post", p):
                owned = direction.owned
                direction = Direction(self._clip("post", p, direction.tensor(), group, owned))
            w = self.weights(p, group)
            method.decay_(w, group)
            direction.move_(w, group["lr"])
            if w is not p:
                p.copy_(w)

    def _advance(self, p: Tensor, group: Group, method: type["Staged"]) -> Direction:
        g, w = self.clipped_gradient(p, group), self.weights(p, group)
        g = -g if group["maximize"] else g
        method.update_(g, w, self.state[p], group)
        return method.direction(g, w, self.state[p], group)

    def weights(self, p: Tensor, group: Group) -> Tensor:
        """What the step acts on: the parameter, or with `fp32_state` the fp32 copy kept of one in half precision."""
        if not group["fp32_state"] or p.dtype not in HALF:
            return p
        if "master" not in self.state[p]:
            self.state[p]["master"] = p.detach().float()
        return self.state[p]["master"]

    def clipped_gradient(self, p: Tensor, group: Group) -> Tensor:
        """The gradient through the `grad` clip; with its sign as it is, since clips are odd."""
        g = p.grad
        assert g is not None
        if g.is_sparse:
            raise RuntimeError(f"{group['method']} does not take sparse gradients: use torch.optim.SparseAdam for them")
        return self._clip("grad", p, g.float() if group["fp32_state"] and g.dtype in HALF else g, group)

    def _orthogonalized(
        self, params: list[Tensor], directions: list[Direction], group: Group, method: type["Staged"]
    ) -> list[Direction]:
        """The matrix sign of all of them in one stack, or spread over the processes: they have the same shape."""

        def sign(m: Tensor) -> Tensor:
            return layout_of(group).restore(method.sign(layout_of(group).matrices(m), group), m.shape)

        clipped = [self._clip("pre", p, d.numerator, group, d.fresh) for p, d in zip(params, directions, strict=True)]
        signs: Any
        if is_spread(clipped[0]):
            signs = by_owner(clipped, sign)
        elif len(clipped) == 1:
            signs = [sign(clipped[0])]
        else:
            stack = method.sign(torch.stack([layout_of(group).matrices(m) for m in clipped]), group)
            signs = [layout_of(group).restore(s, m.shape) for s, m in zip(stack, clipped, strict=True)]
        return [
            d._replace(numerator=method.after_sign(s, p, self.state[p], group), fresh=True)
            for p, d, s in zip(params, directions, signs, strict=True)
        ]

    def _clip(self, stage: str, p: Tensor, x: Tensor, group: Group, owned: bool = False) -> Tensor:
        """`x` clipped as the group says for this stage, in its own memory if that is `owned`."""
        if not clips(group, stage, p):
            return x
        if is_spread(x) and group["blocks"] > 1:  # a block may lie across several pieces
            return spread_like(self._clip(stage, p, whole(x), group), x)
        clip, m = group[stage], layout_of(group).matrices(x)
        memory, when = self.memory(p, stage) or clip.init(m), Step(lr=group["lr"])
        propagate = group["nonfinite"] == "propagate"
        finite = owned and propagate and seen_finite(m)
        if owned and (finite or not propagate):
            y, memory = clip.update_(m, memory, when, finite=finite)
        else:
            y, memory = clip.update(m, memory, when)
            y = propagated(y, m) if propagate else y
        self.remember(p, stage, memory)
        return layout_of(group).restore(y, x.shape)

    def memory(self, p: Tensor, stage: str) -> dict[str, Any]:
        """What the threshold rule of this stage remembers of this parameter."""
        prefix = f"{stage}_"
        return {key.removeprefix(prefix): v for key, v in self.state.get(p, {}).items() if key.startswith(prefix)}

    def remember(self, p: Tensor, stage: str, memory: dict[str, Any]) -> None:
        """Keep the rule's memory in the parameter's state, where it is saved."""
        self.state[p].update({f"{stage}_{key}": value for key, value in memory.items()})

    def _may_proceed(self) -> bool:
        """Apply the policy for gradients that are not finite; whether this step is to be taken."""
        for number, group in enumerate(self.param_groups):
            if group["nonfinite"] == "propagate":
                continue
            for name, p in named(group, number):
                if p.grad is None or _is_finite(p.grad):
                    continue
                if group["nonfinite"] == "raise":
                    raise FloatingPointError(f"the gradient of parameter {name}, shape {tuple(p.shape)}, is not finite")
                for each in self.param_groups:
                    each["skipped"] += 1
                return False
        return True

    def clip_report(self, top: int | None = 10) -> ClipReport:
        """What the clips do to the present gradients and moments, the largest entries first. Free until asked.

        >>> import entryclip as ec
        >>> w = torch.nn.Parameter(torch.zeros(64, 64))
        >>> clip = ec.Clip(ec.smooth_shrinkage, ec.Fixed(1.0))
        >>> optimizer = ec.optim.SGD([("blocks.7.mlp", w)], post=clip)
        >>> w.grad = torch.full((64, 64), 0.1)
        >>> w.grad[12, 50] = 900.0
        >>> optimizer.step()
        >>> print(optimizer.clip_report())
        blocks.7.mlp (post) row 12 col 50: 900 x threshold 1, 0.02% damped by more than half, 1% of RMS kept
        """
        return clip_report(self, top)

    # Groups and checkpoints.

    def add_param_group(self, param_group: Group) -> None:
        """As torch's; a group that names another method gets that method's defaults."""
        method = param_group.get("method", self.defaults.get("method"))
        if method not in self.methods:
            raise ValueError(f"method must be one of {', '.join(sorted(self.methods))}, got {method!r}")
        if method != self.defaults.get("method"):
            param_group = {**COMMON, **self.methods[method].options(), **param_group}
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        group["steps"] = torch.tensor(int(group["steps"]))  # its own, not the default's
        check_group(group, self.methods[method])

    def state_dict(self) -> dict[str, Any]:
        """As torch's, with the clips as text: it loads under `torch.load(weights_only=True)`."""
        saved = super().state_dict()
        for group in saved["param_groups"]:
            group.update({stage: None if group[stage] is None else repr(group[stage]) for stage in STAGES})
        return saved

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's, also for a checkpoint of torch.optim's SGD, AdamW or Muon. The clips stay the ones given here."""
        groups = merged_groups(self.param_groups, state_dict["param_groups"])
        super().load_state_dict({**state_dict, "param_groups": groups})
        for group in self.param_groups:
            group["steps"] = torch.tensor(int(group["steps"]))
        restore_dtypes(self, state_dict)


def _is_finite(g: Any) -> bool:
    """Whether all entries are finite; of a DTensor on all processes, so that they decide alike."""
    return bool(whole(torch.isfinite(g).all()))
