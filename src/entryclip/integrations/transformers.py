"""The monitor of gradient noise as a callback of Hugging Face's Trainer."""

from collections.abc import Sequence
from typing import Any

from ..diagnostics.monitor import Monitor

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise ImportError("this callback needs transformers: pip install 'entryclip[integrations]'") from error


class MonitorCallback(TrainerCallback):
    """`Trainer(callbacks=[MonitorCallback(every=100)])`: adds `noise/...` to the logs, keeps readings in `.monitor`.

    It reads the gradients right before the optimizer's step, after the Trainer's `max_grad_norm`: that scales a whole
    gradient, so it changes neither shares nor places.
    """

    def __init__(self, every: int = 100, where: str | Sequence[str] | None = None) -> None:
        self.every, self.where = every, where
        self.monitor: Monitor | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, *, model: Any = None, **_: Any) -> None:
        """The model is where it will be trained."""
        self.monitor = Monitor(model, self.every, self.where)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The gradients are there."""
        if self.monitor is not None:
            self.monitor.step()

    def on_log(self, args: Any, state: Any, control: Any, *, logs: Any = None, **_: Any) -> None:
        """Add the latest readings to what is logged, and to the history, which has a copy of it already."""
        metrics = {} if self.monitor is None else self.monitor.metrics()
        if logs is not None:
            logs.update(metrics)
        if state.log_history:
            state.log_history[-1].update(metrics)
