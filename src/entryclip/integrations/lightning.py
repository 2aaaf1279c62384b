"""A Lightning callback that monitors gradient noise."""

from collections.abc import Sequence
from typing import Any

from ..diagnostics.monitor import Monitor

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise ImportError("this callback needs Lightning: pip install 'entryclip[integrations]'") from error


class MonitorCallback(Callback):
    """Runs a `diagnostics.Monitor` during training: `Trainer(callbacks=[MonitorCallback(every=100)])`.

    every      steps from one reading to the next
    where      patterns of names of the matrices to watch (default: all hidden ones)

    It logs `noise/...` and keeps all readings in `.monitor`. It reads the gradients right before the optimizer's step:
    unscaled, and before Lightning's own gradient clipping.
    """

    def __init__(self, every: int = 100, where: str | Sequence[str] | None = None) -> None:
        self.every, self.where = every, where
        self.monitor: Monitor | None = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make the monitor, now that the model is on its device."""
        self.monitor = Monitor(pl_module, self.every, self.where)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        """Take a reading where one is due, and log it."""
        if self.monitor is not None and self.monitor.step():
            pl_module.log_dict(self.monitor.metrics())
