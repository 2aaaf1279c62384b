"""The probe: does the gradient noise of a model call for entry-wise clipping? Measured matrix by matrix.

passes.py             the three passes over the samples
gradients.py          gradients of single batches
center.py             robust centers: medians of block means
noise_statistics.py   what is accumulated for each matrix; standardized.py: over the scales of its rows and columns
estimates.py          the result for a matrix from that
recommendation.py     advice, with efficiency.py for the best threshold; structure.py: what the noise is, in words
matrix_noise.py, summary.py, text_table.py    the results, for one matrix and for the model
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn

from ..matrices import select
from .gradients import Loss, SampleGradients, preserved
from .matrix_noise import MatrixNoise
from .passes import LEAST, Passes, Progress
from .summary import Report

__all__ = ["MatrixNoise", "Report", "probe"]


def probe(
    model: nn.Module,
    loss: Loss,
    batches: Iterable[Any],
    where: str | Sequence[str] | None = None,
    directions: int = 8,
    *,
    samples: int = 64,
    progress: Progress = lambda done, total: None,
) -> Report:
    """Measure the gradient noise of the matrices of a model, which is left exactly as it was.

    loss         loss(model, batch) is one number: an ordinary forward pass
    batches      each is one sample of the noise: a sequence, or a microbatch. The first `samples` of them are taken
                 and kept, since half of them are needed twice
    where        patterns of names, as "blocks.*.attn.qkv_w.v" (default: all hidden matrices)
    directions   the number of singular directions of the signal along which noise is projected
    progress     called with the number of gradients done and the number of all

    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(24, 32), nn.Tanh(), nn.Linear(32, 16))
    >>> batches = torch.randn(20, 4, 24)
    >>> report = probe(model, lambda model, x: model(x).square().mean(), batches)
    >>> report.flagged, report.samples, len(report["0.weight"].localization.k)
    ((), 20, 8)
    """
    if not isinstance(directions, int) or isinstance(directions, bool) or directions < 1:
        raise ValueError(f"directions must be a whole number >= 1, got {directions!r}")
    if not isinstance(samples, int) or samples < LEAST:
        raise ValueError(f"samples must be a whole number >= {LEAST}, got {samples!r}")
    chosen = select(model, where)
    with preserved(model):
        taken = list(itertools.islice(batches, samples))
        _check_count(len(taken))
        gradients = SampleGradients(model, loss, chosen.parameters)
        passes = Passes(gradients, taken, chosen.matrices, progress)
        found = passes.noise(passes.signals(directions), directions)
    good = len(taken) - len(gradients.bad)
    notes = () if len(taken) == samples else (f"the batches ran out after {len(taken)} of {samples}",)
    return Report(tuple(found), good, tuple(gradients.bad.values()), chosen.left_out, notes)


def _check_count(count: int) -> None:
    if count < LEAST:
        raise ValueError(
            f"the noise of a gradient needs at least {LEAST} batches, half of them for its signal, got {count}: "
            "give more of them, or split a large batch into single sequences"
        )
