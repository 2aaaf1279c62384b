"""Scalars of a training run for TensorBoard."""

import importlib
from typing import Any

from ..extras import import_extra
from .run import Run


class TensorBoardWriter:
    """Writes loss, learning rate and speed after every step, and each validation loss once.

    They go to the folder `tensorboard` of the run; where a stopped run continues, later steps are replaced.
    """

    def __init__(self, run: Run) -> None:
        import_extra("tensorboard", "--tensorboard", extra="tensorboard")
        board = importlib.import_module("torch.utils.tensorboard")
        self.run, self._written = run, len(run.rows)
        self._writer: Any = board.SummaryWriter(str(run.folder / "tensorboard"), purge_step=run.trainer.done)

    def step(self, loss: float) -> None:
        """Write the scalars of the step that was just taken."""
        trainer = self.run.trainer
        speed = trainer.tokens / trainer.seconds
        for name, value in {"loss": loss, "lr": trainer.learning_rate(), "tokens_per_second": speed}.items():
            self._writer.add_scalar(name, value, trainer.done)
        self._write_evaluations()

    def close(self) -> None:
        """Write the last evaluation and close the file."""
        self._write_evaluations()
        self._writer.close()

    def _write_evaluations(self) -> None:
        for row in self.run.rows[self._written :]:
            self._writer.add_scalar("val_loss", row["val_loss"], row["step"])
        self._written = len(self.run.rows)
