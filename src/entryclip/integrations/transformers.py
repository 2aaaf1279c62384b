"""The clips and the monitor in Hugging Face's Trainer, and in what is built on it (TRL, axolotl).

Build                 the optimizer of `entryclip.optim.build`, for the Trainer's `optimizer_cls_and_kwargs`
MonitorCallback       the gradient noise at every n-th step, and an alarm at every step
ClipReportCallback    what the clips do, and which entries of the gradients stand out

The callbacks log to whatever the Trainer logs to: TensorBoard, Weights & Biases, MLflow and others.
"""

import logging
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from torch import nn

from ..diagnostics.monitor import Monitor
from ..optim.build import build
from ..optim.clip_report import ClipReport, clip_report
from ..optim.staged import Staged

try:
    from transformers import Trainer, TrainerCallback
    from transformers.trainer_callback import CallbackHandler
except ImportError as error:
    raise ImportError("this module needs transformers: pip install 'entryclip[integrations]'") from error

_log = logging.getLogger(__name__)


class Build:
    """Makes the optimizer of a Trainer by `entryclip.optim.build`, with names, roles and layouts of all parameters.

        Trainer(model, args, ..., optimizer_cls_and_kwargs=(Build, {"method": "muon", "other_lr": 1e-3}))

    The options are those of `build`. The learning rate and the weight decay are those of the Trainer's arguments unless
    options say otherwise. The Trainer's `max_grad_norm`, by default 1, should be 0 for Muon: a warning says so. axolotl
    calls it with its training arguments as the second argument.
    """

    def __call__(self, model: nn.Module, training_args: Any = None, **options: Any) -> Staged:
        """Return the optimizer of `model`."""
        if training_args is None:
            training_args = getattr(_caller(Trainer), "args", None)
        if training_args is not None:
            from_args = {"lr": training_args.learning_rate, "weight_decay": training_args.weight_decay}
            options = {**from_args, **options}
        optimizer = build(model, **options)
        _warn_about_norm_clip(optimizer, getattr(training_args, "max_grad_norm", None))
        return optimizer


class _LoggingCallback(TrainerCallback):
    """A callback whose metrics are part of the Trainer's logs before any reporting callback sees them."""

    def __init__(self) -> None:
        self._metrics: dict[str, float] = {}  # what the next logs are to contain
        self._first = self._last = 0  # the batches of the present step, numbered from the start of training

    def on_init_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stand before the reporting callbacks, which the Trainer puts first and which pass on the logs as they are."""
        _stand_first(self, _caller(CallbackHandler))

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stand before the reporting callbacks, also when this one was added after the Trainer was made."""
        _stand_first(self, _caller(CallbackHandler))
        self._first = self._last = state.global_step * args.gradient_accumulation_steps

    def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Count a batch whose gradient is accumulated."""
        self._last += 1

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Begin the next step's batches."""
        self._first = self._last = self._last + 1

    @property
    def batch(self) -> int | str:
        """The number of the present step's batch, or of the first and the last one: `34-35`."""
        return self._first if self._first == self._last else f"{self._first}-{self._last}"

    def on_log(self, args: Any, state: Any, control: Any, *, logs: Any = None, **_: Any) -> None:
        """Add the metrics since the last logs to these, and to the Trainer's history, which was copied from them."""
        if logs is not None:
            logs.update(self._metrics)
        if state.log_history:
            state.log_history[-1].update(self._metrics)
        self._metrics = {}


class MonitorCallback(_LoggingCallback):
    """Runs a `diagnostics.Monitor` during training: `Trainer(callbacks=[MonitorCallback(every=100)])`.

    every      steps from one reading of all matrices to the next
    where      patterns of names of the matrices to watch (default: all hidden ones)
    alarm      look at every step for an entry that dominates its matrix, and log a warning with the step, the batch,
               the parameter and the entry's row and column

    It adds `noise/...` to the logs, over the readings since the last logs, and keeps all of them in `.monitor`. Batches
    are numbered on each process from the start of training, from 0 on; a step has several where it accumulates
    gradients. After a resume the steps go on. It reads the gradients right before the optimizer's step, after
    `max_grad_norm`, which scales the whole gradient and so changes neither the shares nor the positions of entries.
    """

    def __init__(self, every: int = 100, where: str | Sequence[str] | None = None, *, alarm: bool = False) -> None:
        super().__init__()
        self.every, self.where, self.alarm = every, where, alarm
        self.monitor: Monitor | None = None
        self._logged = 0  # the step of the latest logs

    def on_train_begin(self, args: Any, state: Any, control: Any, *, model: Any = None, **_: Any) -> None:
        """Make the monitor, now that the model is on its device, at the step where training begins."""
        super().on_train_begin(args, state, control)
        self.monitor = Monitor(model, self.every, self.where, alarm=self.alarm)
        self.monitor.steps = self._logged = state.global_step

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Let the monitor look at the gradients, and warn of entries that dominate."""
        if self.monitor is None:
            return
        for reading in self.monitor.step(batch=self.batch):
            if reading.spiked and self.alarm:
                _log.warning("one entry dominates the gradient: %s", reading)

    def on_log(self, args: Any, state: Any, control: Any, *, logs: Any = None, **_: Any) -> None:
        """Add the readings since the last logs."""
        if self.monitor is not None:
            self._metrics, self._logged = self.monitor.metrics(since=self._logged), self.monitor.steps
        super().on_log(args, state, control, logs=logs)


class ClipReportCallback(_LoggingCallback):
    """Asks for the `clip_report` of the Trainer's optimizer: `Trainer(callbacks=[ClipReportCallback(every=100)])`.

    every      steps from one report to the next

    It adds `clip/...` to the logs and keeps the latest report in `.report`; `print(callback.report)` shows it.
    """

    def __init__(self, every: int = 100) -> None:
        super().__init__()
        if not isinstance(every, int) or isinstance(every, bool) or every < 1:
            raise ValueError(f"every must be a whole number of steps >= 1, got {every!r}")
        self.every = every
        self.report = ClipReport()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, *, optimizer: Any = None, **_: Any) -> None:
        """Take a report where one is due: after the step, while the gradients are still there."""
        if (state.global_step + 1) % self.every == 0:
            self.report = clip_report(optimizer, top=None, batch=self.batch)
            self._metrics = self.report.metrics()


def _stand_first(callback: TrainerCallback, handler: CallbackHandler | None) -> None:
    """Move a callback before all others of the handler, in a new list: the old one is being iterated over."""
    if handler is not None and callback in handler.callbacks:
        handler.callbacks = [callback, *(other for other in handler.callbacks if other is not callback)]


def _caller(kind: type) -> Any:
    """Return the nearest object of this class among those whose methods are running; None where there is none.

    transformers gives neither a callback nor an optimizer's factory a way to the Trainer that calls it.
    """
    frame = sys._getframe(1)
    while frame is not None:
        if isinstance(found := frame.f_locals.get("self"), kind):
            return found
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _warn_about_norm_clip(optimizer: Staged, max_grad_norm: float | None) -> None:
    if max_grad_norm and any(group["method"].has_sign for group in optimizer.param_groups):
        warnings.warn(
            f"max_grad_norm={max_grad_norm:g} scales all gradients down before Muon, whose matrix sign sets the size "
            "of its update anyway: set max_grad_norm=0.0 in the TrainingArguments",
            stacklevel=3,
        )
