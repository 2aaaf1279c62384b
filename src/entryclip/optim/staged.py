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

from ..dtensor import are_finite, is_finite
from .batches import batches
from .capture import checked_capture, count_step_, is_capturing
from .clip_report import ClipReport, clip_report
from .direction import Direction, materialize_all_, move_all_
from .flattened import is_clipped, refuse_flat_pieces, refuse_flattened_since, vectors_of
from .foreach import copy_all_, negate_all
from .groups import COMMON, HALF, Group, check_group, clips, named, refuse_meta, with_scalar_lr
from .kernels.plan import FusedStep
from .methods.method import Method, find_method
from .norm_clip import follow_norms_
from .stacked_clip import clip_all_
from .stages import gradient, orthogonalize, refuse_sparse
from .state_dict import as_text, load_state_dict

_SPENT = Direction(torch.empty(0))
_MOMENTA = {"momentum", "betas"}  # the options that torch's schedulers cycle with `cycle_momentum`


def _known_to_schedulers(step: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a step that sets `_opt_called` itself, so that no scheduler of torch replaces it on the optimizer.

    The wrapper that a scheduler would put around it is a function that torch.compile refuses to trace.
    """
    vars(step)["_wrapped_by_lr_sched"] = True
    return step


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
        self._vectors: dict[int, frozenset[int] | None] = {}  # ids of a group's vectors, where it has matrices, too
        own = {} if self.method is None else {**self.method.options(), "method": self.method}
        super().__init__(params, {**COMMON, **own, **(defaults or {})})
        if any(_MOMENTA & group.keys() for group in self.param_groups) and not _MOMENTA & self.defaults.keys():
            self.defaults["momentum"] = 0.0  # tells schedulers to cycle `momentum`, which every method understands

    def __getstate__(self) -> dict[str, Any]:
        """Return what copies and pickles keep: torch's part, and the public attributes that a user or subclass set."""
        public = [key for key in vars(self) if not key.startswith("_") and not callable(getattr(type(self), key, None))]
        return {**{key: vars(self)[key] for key in public}, **super().__getstate__()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._fused, self._on_cpu = {}, {}
        if "_vectors" not in vars(self):  # a copy; `load_state_dict` comes here, too
            self._vectors = {number: vectors_of(group) for number, group in enumerate(self.param_groups)}

    @_known_to_schedulers
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step; `closure`, if given, computes the loss and the gradients first."""
        if not torch.compiler.is_compiling():
            for number, group in enumerate(self.param_groups):
                if (vectors := self._vectors.get(number)) is not None:
                    refuse_flattened_since(group, number, vectors)
        self._opt_called = True  # for schedulers, which warn where they are stepped first
        if torch.compiler.is_compiling() and any(group["fused"] for group in self.param_groups):
            from .uncompiled import step_uncompiled

            return step_uncompiled(self, closure)
        with checked_capture(self) if is_capturing() else contextlib.nullcontext():
            return self._step(closure)

    def _step(self, closure: Callable[[], Any] | None) -> Any:
        """Take one step, wherever it is called from."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            group["method"].follow_momentum_(group)
            count_step_(group)
        if not self._may_proceed():
            return loss
        factors = follow_norms_(self.param_groups)
        for number, group in enumerate(map(with_scalar_lr, self.param_groups)):
            group = {**group, "norm_factor": factors[number]} if number in factors else group
            method, params = group["method"], [p for p in group["params"] if p.grad is not None]
            if group["fused"]:
                refuse_meta(group, number)
                self._check_again_if_moved(number, group, method)
                params = self._fused_step(number, params, group, method)
            self._check_states(params, group, method)
            for batch in method.batches(params, group):
                self._step_together(batch, group, method)
        return loss

    def _check_states(self, params: list[Tensor], group: Group, method: Method) -> None:
        """Refuse buffers of another shape than their parameter's, and move those of a parameter that was moved."""
        for p in params:
            state = self.state[p]
            method.check_shapes(p, state, group)
            method.follow_device_(p, state)

    def _check_again_if_moved(self, number: int, group: Group, method: Method) -> None:
        """Repeat the checks of a group with `fused=True` when its parameters were moved to or from a device."""
        on_cpu = {p.is_cpu for p in group["params"]}
        if self._on_cpu.get(number) != on_cpu:
            method.check(group)
            self._on_cpu[number] = on_cpu

    def _fused_step(self, number: int, params: list[Tensor], group: Group, method: Method) -> list[Tensor]:
        """Let the method's kernel step the parameters that it supports; returns the others."""
        if method.kernel is None or not params:
            if not group["capturable"]:  # else graphs may work in its memory
                self._fused.pop(number, None)  # the tables of parameters that are all frozen by now
            return params
        if number not in self._fused:
            self._fused[number] = method.kernel()
        kernel, states = self._fused[number], [self.state[p] for p in params]
        weights = self._all_weights(params, group)
        if not kernel.serves(params, weights, states, group):
            self._check_states(params, group, method)
            weights = self._all_weights(params, group)
            for w, state in zip(weights, states, strict=True):
                method.make_buffers_(w, state, group)
            kernel.bind(params, weights, states, group)
        taken = kernel.taken
        if kernel.clips_gradients or (kernel.takes_half and group["grad"] is None):
            scaled = "norm_factor" in group
            own = [gradient(params[i], group) if scaled else params[i].grad for i in taken]
            kernel.step_([g for g in own if g is not None], group)
        else:
            kernel.step_(self._clipped_gradients([params[i] for i in taken], group), group)
        if group["fp32_state"] and not kernel.takes_half:
            halves = [i for i in taken if weights[i] is not params[i]]
            copy_all_([params[i] for i in halves], [weights[i] for i in halves])
        return kernel.rest

    def _clipped_gradients(self, params: list[Tensor], group: Group) -> list[Tensor]:
        """Return the gradients of any number of parameters after the `grad` clip."""
        own = [gradient(p, group) for p in params]
        if group["grad"] is None:
            return own
        clipped = dict(zip(params, own, strict=True))
        for batch in batches(params):
            clipped.update(zip(batch, self._clip("grad", batch, [clipped[p] for p in batch], group), strict=True))
        return [clipped[p] for p in params]

    def _step_together(self, params: list[Tensor], group: Group, method: Method) -> None:
        """Step the parameters of one batch, each operation for all of them."""
        directions = self._advance(params, group, method)
        if method.has_sign:
            directions = self._signed(params, directions, group, method)
        chosen = [i for i, p in enumerate(params) if clips(group, "post", p)]
        if chosen:
            owned = all(directions[i].is_owned for i in chosen)
            us = materialize_all_([directions[i] for i in chosen])
            for i in chosen:
                directions[i] = _SPENT  # its denominator's memory is free from here on
            us = self._clip("post", [params[i] for i in chosen], us, group, owned=owned)
            for i, u in zip(chosen, us, strict=True):
                directions[i] = Direction(u)
        ws = self._all_weights(params, group)
        method.decay_all_(ws, group)
        move_all_(directions, ws, group["lr"], capturable=group["capturable"])
        halves = [i for i, p in enumerate(params) if ws[i] is not p]
        copy_all_([params[i] for i in halves], [ws[i] for i in halves])

    def _advance(self, params: list[Tensor], group: Group, method: Method) -> list[Direction]:
        """Take the clipped gradients into the moments and return the directions."""
        gs = self._clip("grad", params, [gradient(p, group) for p in params], group)
        gs = negate_all(gs) if group["maximize"] else gs  # after the clip, which is odd
        ws, states = self._all_weights(params, group), [self.state[p] for p in params]
        method.update_all_(gs, ws, states, group)
        return method.directions(gs, ws, states, group)

    def _signed(
        self, params: list[Tensor], directions: list[Direction], group: Group, method: Method
    ) -> list[Direction]:
        """Put each direction, after the `pre` clip, through the matrix sign."""
        owned = all(d.fresh for d in directions)
        clipped = self._clip("pre", params, [d.numerator for d in directions], group, owned=owned)
        signs = orthogonalize(clipped, group, method)
        for p, o in zip(params, signs, strict=True):
            method.update_after_sign_(o, self.state[p], group)
        updates = [method.from_sign(o, self.state[p], group) for p, o in zip(params, signs, strict=True)]
        return [replace(d, numerator=u, fresh=True) for d, u in zip(directions, updates, strict=True)]

    def _all_weights(self, params: list[Tensor], group: Group) -> list[Tensor]:
        """Return `_weights` of each parameter."""
        return [self._weights(p, group) for p in params] if group["fp32_state"] else params

    def _weights(self, p: Tensor, group: Group) -> Tensor:
        """Return what the step acts on: the parameter, or the fp32 copy that `fp32_state` keeps of a half one."""
        if not group["fp32_state"] or p.dtype not in HALF:
            return p
        if "master" not in self.state[p]:
            self.state[p]["master"] = p.detach().float()
        return self.state[p]["master"]

    def _clip(
        self, stage: str, params: list[Tensor], xs: list[Tensor], group: Group, owned: bool = False
    ) -> list[Tensor]:
        """Return each `x` as the stage's clip leaves it, and keep the rule's memory in the state, where it is saved."""
        if group[stage] is None:
            return xs
        return clip_all_(stage, params, xs, [self.state[p] for p in params], group, owned=owned)

    def _may_proceed(self) -> bool:
        """Apply the policy for gradients that are not finite; tells whether this step is to be taken."""
        checked = [group for group in self.param_groups if group["nonfinite"] != "propagate"]
        gradients = [(p.grad, group) for group in checked for p in group["params"] if p.grad is not None]
        for g, group in gradients:
            refuse_sparse(g, group)
        if are_finite([g for g, _ in gradients]):
            return True
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

    def clip_report(self, top: int | None = 10, *, batch: Any = None) -> ClipReport:
        """Return what the clips do to the present gradients and moments, and which entries of the gradients stand out.

        It is free until asked; `batch` is named with each outlier. `entryclip.optim.clip_report` does the same for an
        optimizer that Accelerate wraps.

        >>> import entryclip as ec
        >>> w = torch.nn.Parameter(torch.zeros(64, 64))
        >>> clip = ec.Clip(ec.smooth_shrinkage, ec.Fixed(1.0))
        >>> optimizer = ec.optim.SGD([("blocks.7.mlp", w)], post=clip)
        >>> w.grad = torch.full((64, 64), 0.1)
        >>> w.grad[12, 50] = 900.0
        >>> optimizer.step()
        >>> print(optimizer.clip_report())
        blocks.7.mlp (gradient) row 12 col 50: 900, 6.66e+03 x its scale
        blocks.7.mlp (post) row 12 col 50: 900 x threshold 1, 0.02% damped by more than half, 1% of RMS kept
        """
        return clip_report(self, top, batch=batch)

    def add_param_group(self, param_group: Group) -> None:
        """Add a group as torch does; one that names another method gets that method's defaults."""
        given = param_group
        method = find_method(given.get("method", self.defaults.get("method")))
        if method is not self.defaults.get("method"):
            param_group = {**COMMON, **method.options(), **param_group}
        super().add_param_group({**param_group, "method": method})
        group = self.param_groups[-1]
        if "momentum" not in given and "momentum" not in method.options():
            group.pop("momentum", None)  # the default is there for schedulers
        group["steps"] = torch.tensor(int(group["steps"]))  # its own, not the default's
        group["fused"] = bool(group["fused"]) and method.kernel is not None
        try:
            check_group(group, method)
            if is_clipped(group):
                refuse_flat_pieces(group["params"], group["clip_vectors"])
        except (ValueError, TypeError, RuntimeError):
            self.param_groups.pop()
            raise
        number = len(self.param_groups) - 1
        self._on_cpu[number], self._vectors[number] = {p.is_cpu for p in group["params"]}, vectors_of(group)

    def state_dict(self) -> dict[str, Any]:
        """Return torch's state dict with clips and methods as text: it loads under `torch.load(weights_only=True)`."""
        return as_text(super().state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load as torch does, also a checkpoint of torch.optim's SGD, AdamW or Muon. Clips and methods stay as here."""
        load_state_dict(self, state_dict, super().load_state_dict)
