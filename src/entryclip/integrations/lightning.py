"""The monitor of gradient noise as a Lightning callback."""

from collections.abc import Sequence
from typing import Any

from ..diagnostics.monitor import Monitor

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise ImportError("this callback needs Lightning: pip install 'entryclip[integrations]'") from error


class MonitorCallback(Callback):
    """`Trainer(callbacks=[MonitorCallback(every=100)])`: logs `noise/...`, keeps all readings in `.monitor`.

    It reads the gradients right before the optimizer's step: unscaled, and before Lightning's own gradient clipping.
    """

    def __init__(self, every: int = 100, where: str | Sequence[str] | None = None) -> None:
        self.every, self.where = every, where
        self.monitor: Monitor | None = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The model is where it will be trained."""
        self.monitor = Monitor(pl_module, self.every, self.where)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        """The gradients are there."""
        if self.monitor is not None and self.monitor.step():
            pl_module.log_dict(self.monitor.metrics())
