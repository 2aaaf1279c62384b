"""A callback for Hugging Face's Trainer that monitors gradient noise."""

from collections.abc import Sequence
from typing import Any

from ..diagnostics.monitor import Monitor

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise ImportError("this callback needs transformers: pip install 'entryclip[integrations]'") from error


class MonitorCallback(TrainerCallback):
    """Runs a `diagnostics.Monitor` during training: `Trainer(callbacks=[MonitorCallback(every=100)])`.

    every      steps from one reading to the next
    where      patterns of names of the matrices to watch (default: all hidden ones)

    It adds `noise/...` to the logs and keeps all readings in `.monitor`. It reads the gradients right before the
    optimizer's step, after the Trainer's `max_grad_norm`, which scales the whole gradient and so changes neither the
    shares nor the positions of entries.
    """

    def __init__(self, every: int = 100, where: str | Sequence[str] | None = None) -> None:
        self.every, self.where = every, where
        self.monitor: Monitor | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, *, model: Any = None, **_: Any) -> None:
        """Make the monitor, now that the model is on its device."""
        self.monitor = Monitor(model, self.every, self.where)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Take a reading where one is due."""
        if self.monitor is not None:
            self.monitor.step()

    def on_log(self, args: Any, state: Any, control: Any, *, logs: Any = None, **_: Any) -> None:
        """Add the latest readings to the logs, and to the Trainer's history, which was copied from them before."""
        metrics = {} if self.monitor is None else self.monitor.metrics()
        if logs is not None:
            logs.update(metrics)
        if state.log_history:
            state.log_history[-1].update(metrics)
