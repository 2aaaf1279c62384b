"""The validation loss of a model by how frequent the token to be predicted is in the training text."""

from typing import NamedTuple

import torch

from ..data.token_frequency import BANDS, count_tokens, frequency_bands
from ..model.head_loss import IGNORED
from .trainer import Trainer


class BandLoss(NamedTuple):
    """What is measured on the validation tokens of one band."""

    tokens: int
    loss: float | None  # their mean; None where there are none


@torch.no_grad()
def loss_by_frequency(trainer: Trainer) -> list[BandLoss]:
    """Evaluate the model on each band of `BANDS` alone, over the validation tokens that `trainer.evaluate` takes.

    Every band costs an evaluation: the model computes means over the targets that are not left out, and each pass
    leaves out those of the other bands. It is for a run in one process.
    """
    if trainer.processes.count > 1:
        raise ValueError(f"losses by frequency are measured in one process, this run has {trainer.processes.count}")
    settings, device = trainer.settings, trainer.processes.device
    counts = count_tokens(trainer.data.train, trainer.config.vocabulary)
    band_of = torch.from_numpy(frequency_bands(counts)).to(device)
    totals, tokens = [0.0] * len(BANDS), [0] * len(BANDS)
    batches, left = trainer.data.evaluation_batches(), settings.eval_tokens // settings.length
    for first in range(0, left, batches.sequences):
        inputs, targets = (each[: left - first].to(device) for each in next(batches))
        bands = band_of[targets]
        for band in range(len(BANDS)):
            count = int((bands == band).sum())
            if count:
                loss = trainer.loss(inputs, targets.where(bands == band, IGNORED))
                totals[band] += float(loss.double()) * count
                tokens[band] += count
    return [BandLoss(count, total / count if count else None) for count, total in zip(tokens, totals, strict=True)]
