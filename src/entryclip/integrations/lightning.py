"""The clips and the monitor in a Lightning Trainer.

ClipCallback       clips the gradients that any optimizer of a module sees
MonitorCallback    the gradient noise at every n-th step, and an alarm at every step

Both act right before the optimizer's step. There Lightning has accumulated and unscaled the gradients, and it has not
yet clipped them itself (`gradient_clip_val`).
"""

import fnmatch
import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from ..clip import Clip
from ..diagnostics.monitor import Monitor
from ..optim.groups import COMMON, Group, ParameterState
from ..optim.routing import Route, routes
from ..optim.stages import apply_clip

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise ImportError("this module needs Lightning: pip install 'entryclip[integrations]'") from error

_log = logging.getLogger(__name__)


class ClipCallback(Callback):
    """Clips gradients for any optimizer: `Trainer(callbacks=[ClipCallback(entryclip.smooth(0.99))])`.

    clip       the clip of the gradients
    where      patterns of names of the parameters to clip (default: all hidden matrices, as `optim.build` finds them)

    It takes the place of `Trainer(gradient_clip_val=...)` and like that writes to the gradients. It is right under
    accumulated gradients, which it sees as a whole, and under mixed precision, where it sees them unscaled and an
    overflow still makes the scaler skip the step. What a clip with memory remembers is part of the checkpoints.
    """

    def __init__(self, clip: Clip, where: str | Sequence[str] | None = None) -> None:
        if not isinstance(clip, Clip):
            raise TypeError(f"clip must be a Clip such as entryclip.smooth(0.99), got {clip!r}")
        self.clip = clip
        self.where = [where] if isinstance(where, str) else where
        self._groups: dict[Tensor, Group] = {}  # the clip's options for each parameter that it clips
        self._names: dict[Tensor, str] = {}
        self._memory: dict[str, ParameterState] = {}  # by the parameter's name

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find the parameters to clip, and where their matrices lie."""
        parameters = dict(pl_module.named_parameters())
        chosen = list(self._chosen(pl_module))
        if not chosen:
            known = ", ".join([name for name, p in parameters.items() if p.ndim >= 2][:5]) or "none"
            raise ValueError(f"where={self.where} names no matrix of the module: there are {known}")
        self._names = {parameters[route.name]: route.name for route in chosen}
        options = {**COMMON, "grad": self.clip}
        self._groups = {parameters[route.name]: {**options, **asdict(route.layout)} for route in chosen}

    @torch.no_grad()
    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        """Clip the gradients of this optimizer's parameters."""
        if trainer.scaler is not None and getattr(optimizer, "_step_supports_amp_scaling", False):
            raise ValueError(
                "this fused optimizer unscales inside its step: make it with fused=False to clip before it"
            )
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None and p in self._groups:
                    memory = self._memory.setdefault(self._names[p], {})
                    p.grad, new = apply_clip("grad", p, p.grad, memory, {**self._groups[p], "lr": group["lr"]})
                    memory.update({f"grad_{key}": value for key, value in new.items()})

    def state_dict(self) -> dict[str, Any]:
        """Return what the clip's rule remembers of each parameter."""
        return {"memory": {name: memory for name, memory in self._memory.items() if memory}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with what a checkpoint remembers."""
        self._memory = {name: dict(memory) for name, memory in state_dict["memory"].items()}

    def _chosen(self, module: LightningModule) -> Iterator[Route]:
        """Yield the routes of the matrices to clip."""
        for route in routes(module, {}):
            if len(route.shape) >= 2 and (
                route.role == "hidden"
                if self.where is None
                else any(fnmatch.fnmatchcase(route.name, each) for each in self.where)
            ):
                yield route


class MonitorCallback(Callback):
    """Runs a `diagnostics.Monitor` during training: `Trainer(callbacks=[MonitorCallback(every=100)])`.

    every      steps from one reading of all matrices to the next
    where      patterns of names of the matrices to watch (default: all hidden ones)
    alarm      look at every step for an entry that dominates its matrix, and log a warning with the step, the batch,
               the parameter and the entry's row and column

    It logs `noise/...` and keeps all readings in `.monitor`. Batches have Lightning's number, that in the epoch. After
    a resume the steps go on. Put it before a `ClipCallback` in the list to see the gradients as they are.
    """

    def __init__(self, every: int = 100, where: str | Sequence[str] | None = None, *, alarm: bool = False) -> None:
        self.every, self.where, self.alarm = every, where, alarm
        self.monitor: Monitor | None = None
        self._state: dict[str, Any] | None = None  # of a checkpoint, until the monitor is made
        self._batches: list[int] = []  # those of the present step

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make the monitor, now that the model is on its device."""
        self.monitor = Monitor(pl_module, self.every, self.where, alarm=self.alarm)
        if self._state is not None:
            self.monitor.load_state_dict(self._state)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Remember the batch's number."""
        self._batches.append(batch_idx)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        """Let the monitor look at the gradients, log its readings, and warn of entries that dominate."""
        if self.monitor is None:
            return
        first, last = self._batches[0], self._batches[-1]
        found = self.monitor.step(batch=first if first == last else f"{first}-{last}")
        self._batches = []
        if found:
            pl_module.log_dict(self.monitor.metrics())
        for reading in found if self.alarm else ():
            if reading.spiked:
                _log.warning("one entry dominates the gradient: %s", reading)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the monitor, for a checkpoint."""
        return {"monitor": None if self.monitor is None else self.monitor.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._state = state_dict["monitor"]
        if self.monitor is not None and self._state is not None:
            self.monitor.load_state_dict(self._state)
