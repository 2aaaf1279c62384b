"""The one loop of all optimizers: [grad clip] -> moments -> [pre clip] -> msign -> [post clip] -> decay, step.

A param group follows a `Method`, so one optimizer can hold Muon and AdamW groups. The method says which buffers it
keeps and how a gradient becomes a direction; the loop is here. `p.grad` is read, never written.
"""

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..dtensor import is_finite
from .capture import checked_capture, count_step_, is_capturing, keep_memory_
from .clip_report import ClipReport, clip_report
from .direction import Direction
from .groups import COMMON, HALF, Group, check_group, clips, named
from .kernels.plan import FusedStep
from .methods.method import Method, find_method
from .stages import apply_clip, gradient, orthogonalize
from .state_dict import as_text, load_state_dict


class Staged(torch.optim.Optimizer):
    """An optimizer whose param groups each follow a method ("sgd", "adamw", "muon", ...) with that method's defaults.

    Use it directly to mix methods; `build` makes one for a whole model. `defaults` are options for all groups.

    >>> w, b = torch.nn.Parameter(torch.ones(4, 4)), torch.nn.Parameter(torch.ones(4))
    >>> optimizer = Staged([{"params": [w], "method": "muon", "lr": 0.02}, {"params": [b], "method": "adamw"}])
    >>> [group["lr"] for group in optimizer.param_groups]
    [0.02, 0.001]
    """

    method: ClassVar[Method | None] = None  # of the groups that name none

    def __init__(self, params: Iterable[Any], defaults: Group | None = None):
        self._fused: dict[int, FusedStep] = {}
        self._on_cpu: dict[int, set[bool]] = {}  # whether a group's parameters lay on a CPU when last checked
        own = {} if self.method is None else {**self.method.options(), "method": self.method}
        super().__init__(params, {**COMMON, **own, **(defaults or {})})

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._fused, self._on_cpu = {}, {}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step; `closure`, if given, computes the loss and the gradients first."""
        if torch.compiler.is_compiling() and any(group["fused"] for group in self.param_groups):
            return self._step_outside_the_compiler(closure)
        with checked_capture(self) if is_capturing() else contextlib.nullcontext():
            return self._step(closure)

    @torch.compiler.disable(reason="the kernels of fused=True take addresses")  # type: ignore
    def _step_outside_the_compiler(self, closure: Callable[[], Any] | None) -> Any:
        """Break the compiler's graph for a step with `fused=True`: it cannot see what a kernel does by addresses."""
        return self._step(closure)

    def _step(self, closure: Callable[[], Any] | None) -> Any:
        """Take one step, wherever it is called from."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            count_step_(group)
        if not self._may_proceed():
            return loss
        for number, group in enumerate(self.param_groups):
            method, params = group["method"], [p for p in group["params"] if p.grad is not None]
            for p in params:
                method.check_shapes(p, self.state[p], group)
                method.follow_device_(p, self.state[p])
            if group["fused"]:
                self._check_again_if_moved(number, group, method)
                params = self._fused_step(number, params, group, method)
            for batch in method.batches(params, group):
                self._step_together(batch, group, method)
        return loss

    def _check_again_if_moved(self, number: int, group: Group, method: Method) -> None:
        """Repeat the checks of a group with `fused=True` when its parameters were moved to or from a device."""
        on_cpu = {p.is_cpu for p in group["params"]}
        if self._on_cpu.get(number) != on_cpu:
            method.check(group)
            self._on_cpu[number] = on_cpu

    def _fused_step(self, number: int, params: list[Tensor], group: Group, method: Method) -> list[Tensor]:
        """Let the method's kernel step the parameters that it supports; returns the others."""
        kernel = self._fused.setdefault(number, method.kernel()) if method.kernel else None
        if kernel is None or not params:
            return params
        weights, states = [self._weights(p, group) for p in params], [self.state[p] for p in params]
        for w, state in zip(weights, states, strict=True):
            method.make_buffers_(w, state, group)
        taken = kernel.bind(params, weights, states, group)
        as_is = kernel.takes_half and group["grad"] is None
        kernel.step_([self._gradient(params[i], group, as_is=as_is) for i in taken], group)
        for i in taken:
            if weights[i] is not params[i] and not kernel.takes_half:
                params[i].copy_(weights[i])
        return kernel.rest

    def _gradient(self, p: Tensor, group: Group, *, as_is: bool = False) -> Tensor:
        """Return the clipped gradient in the precision of the moments; `as_is` leaves one without a clip in its own."""
        if as_is and p.grad is not None:
            return p.grad
        return self._clip("grad", p, gradient(p, group), group)

    def _step_together(self, params: list[Tensor], group: Group, method: Method) -> None:
        """Step parameters of one batch; their matrix signs are taken together."""
        directions = [self._advance(p, group, method) for p in params]
        if method.has_sign:
            directions = self._signed(params, directions, group, method)
        for p, direction in zip(params, directions, strict=True):
            if clips(group, "post", p):
                owned = direction.is_owned
                direction = Direction(self._clip("post", p, direction.materialize_(), group, owned=owned))
            w = self._weights(p, group)
            method.decay_(w, group)
            direction.move_(w, group["lr"], capturable=group["capturable"])
            if w is not p:
                p.copy_(w)

    def _advance(self, p: Tensor, group: Group, method: Method) -> Direction:
        """Take the clipped gradient into the moments and return the direction."""
        g, w = self._gradient(p, group), self._weights(p, group)
        g = -g if group["maximize"] else g  # after the clip, which is odd
        method.update_(g, w, self.state[p], group)
        return method.direction(g, w, self.state[p], group)

    def _signed(
        self, params: list[Tensor], directions: list[Direction], group: Group, method: Method
    ) -> list[Direction]:
        """Put each direction, after the `pre` clip, through the matrix sign."""
        pairs = list(zip(params, directions, strict=True))
        signs = orthogonalize(
            [self._clip("pre", p, d.numerator, group, owned=d.fresh) for p, d in pairs], group, method
        )
        for p, o in zip(params, signs, strict=True):
            method.update_after_sign_(o, self.state[p], group)
        updates = [method.from_sign(o, self.state[p], group) for p, o in zip(params, signs, strict=True)]
        return [replace(d, numerator=u, fresh=True) for d, u in zip(directions, updates, strict=True)]

    def _weights(self, p: Tensor, group: Group) -> Tensor:
        """Return what the step acts on: the parameter, or the fp32 copy that `fp32_state` keeps of a half one."""
        if not group["fp32_state"] or p.dtype not in HALF:
            return p
        if "master" not in self.state[p]:
            self.state[p]["master"] = p.detach().float()
        return self.state[p]["master"]

    def _clip(self, stage: str, p: Tensor, x: Tensor, group: Group, owned: bool = False) -> Tensor:
        """Return `x` as the stage's clip leaves it, and keep the rule's memory in the state, where it is saved."""
        clipped, memory = apply_clip(stage, p, x, self.state[p], group, owned=owned)
        keep_memory_(self.state[p], stage, memory, in_place=group["capturable"])
        return clipped

    def _may_proceed(self) -> bool:
        """Apply the policy for gradients that are not finite; tells whether this step is to be taken."""
        for number, group in enumerate(self.param_groups):
            if group["nonfinite"] == "propagate":
                continue
            for name, p in named(group, number):
                if p.grad is None or is_finite(p.grad):
                    continue
                if group["nonfinite"] == "raise":
                    raise FloatingPointError(f"the gradient of parameter {name}, shape {tuple(p.shape)}, is not finite")
                for each in self.param_groups:
                    each["skipped"] += 1
                return False
        return True

    def clip_report(self, top: int | None = 10) -> ClipReport:
        """Return what the clips do to the present gradients and moments, the largest entries first. Free until asked.

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

    def add_param_group(self, param_group: Group) -> None:
        """Add a group as torch does; one that names another method gets that method's defaults."""
        method = find_method(param_group.get("method", self.defaults.get("method")))
        if method is not self.defaults.get("method"):
            param_group = {**COMMON, **method.options(), **param_group}
        super().add_param_group({**param_group, "method": method})
        group = self.param_groups[-1]
        group["steps"] = torch.tensor(int(group["steps"]))  # its own, not the default's
        group["fused"] = bool(group["fused"]) and method.kernel is not None
        try:
            check_group(group, method)
        except (ValueError, TypeError, RuntimeError):
            self.param_groups.pop()
            raise
        self._on_cpu[len(self.param_groups) - 1] = {p.is_cpu for p in group["params"]}

    def state_dict(self) -> dict[str, Any]:
        """Return torch's state dict with clips and methods as text: it loads under `torch.load(weights_only=True)`."""
        return as_text(super().state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load as torch does, also a checkpoint of torch.optim's SGD, AdamW or Muon. Clips and methods stay as here."""
        load_state_dict(self, state_dict, super().load_state_dict)
