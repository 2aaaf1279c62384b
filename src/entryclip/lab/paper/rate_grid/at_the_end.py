"""What is measured on a run of the grid after its last step: losses by token frequency, and what a clip would gain."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from ....diagnostics.matrices import select
from ...lm.train.loss_by_frequency import loss_by_frequency
from ...lm.train.trainer import Trainer
from ..scales.measurement import measure
from ..spike_score import WINDOW, spike_score

DEVIATIONS = 7.0  # from the mean of the 50 losses before: what counts as a spike of the training loss

NOT_MEASURED: dict[str, Any] = {
    "band_tokens": [],
    "band_losses": [],
    "raw_gain": None,
    "standardized_gain": None,
    "spike_score": None,
}  # of a run that diverged


def measured_at_the_end(trainer: Trainer, losses: Sequence[float]) -> dict[str, Any]:
    """Measure a run that has taken its last step; `losses` are those of its training batches, step by step.

    band_tokens, band_losses    validation tokens and their mean loss, by band of `token_frequency.BANDS`
    raw_gain, standardized_gain the gain of the best entry-wise clip on the gradient of one more batch, the median over
                                the hidden matrices, as it is and with the scales of rows and columns divided out;
                                None where the data has no further batch
    spike_score                 the percentage of the steps after the first 50 whose loss is a spike; None in a run
                                that has no more steps than these
    """
    bands = loss_by_frequency(trainer)
    raw, standardized = _gains(trainer)
    return {
        "band_tokens": [band.tokens for band in bands],
        "band_losses": [band.loss for band in bands],
        "raw_gain": raw,
        "standardized_gain": standardized,
        "spike_score": spike_score(losses[:WINDOW], losses[WINDOW:], DEVIATIONS) if len(losses) > WINDOW else None,
    }


def _gains(trainer: Trainer) -> tuple[float | None, float | None]:
    batch = next(trainer.batches, None)
    if batch is None:
        return None, None
    trainer.loss(*(each.to(trainer.processes.device) for each in batch)).backward()  # type: ignore[no-untyped-call]
    found = []
    for matrix in select(trainer.model).matrices:
        gradient = trainer.model.get_parameter(matrix.parameter).grad
        if gradient is not None and bool((x := matrix.of(gradient)).any()):
            found.append(measure(x))
    trainer.optimizer.zero_grad()
    if not found:
        return None, None
    return median(each["raw"] for each in found), median(each["standardized"] for each in found)
