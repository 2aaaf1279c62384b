"""A monitor of gradient noise during training, from the gradients that a step computes anyway.

The noise of a step is its gradient less the running mean of the gradients before it, so it costs no further backward
pass. A reading answers the question on which the probe's advice rests: does one entry carry the largest singular value
of the noise, also when the scales of rows and columns are divided out? It has no R-hat: that of one step says nothing
(for Gaussian noise it exceeds 10 in one step of six).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..arrays import widen
from ..clip import Clip
from ..dtensor import whole
from ..matrix.singular import leading_triplet
from ..operators import hard_clip
from ..quantiles.quantile import quantile_abs
from ..scales import row_column_scales
from ..thresholds import Scale
from .matrices import NamedMatrix, select
from .probe.standardized import DOMINANT, DetectedSpike, dominant_entry

_PARTS = 10  # updates of the running mean between two readings
_BETA = 0.9  # its memory is ten updates, that is about `every` steps
_FIRST = 3  # updates before the first reading
_LARGEST = 1e30  # standardised entries beyond it would overflow in fp32
_LIMIT = Clip(hard_clip, Scale(5.0))  # limits a change of the mean: else a spike would show in later readings too


class Reading(NamedTuple):
    """The largest entry of the noise of one matrix at one step, and its share of sigma_1."""

    step: int
    name: str
    sigma: float  # the largest singular value of the noise
    share: float  # the share of sigma that the largest entry carries
    row: int
    column: int
    size: float  # the size of that entry in scales, the median of the non-zero |E_ij| over 0.6745
    standardized: DetectedSpike | None = None  # the entry that carries more than half of sigma_1 of the noise over the
    # scales of its rows and columns; None where there is none

    @property
    def spiked(self) -> bool:
        """Whether one entry carries more than half of sigma_1 of the standardised noise: an anomalous entry."""
        return self.standardized is not None

    @property
    def raw_spiked(self) -> bool:
        """Whether one entry carries more than half of sigma_1 of the noise as it is, with the scales in it."""
        return self.share > DOMINANT

    def __str__(self) -> str:
        found = (self.row, self.column, self.share, self.size)
        if self.standardized is not None and self.standardized[1:3] != found[:2]:
            found = self.standardized[1:]
        row, column, share, size = found
        return f"step {self.step}, {self.name}, row {row} column {column}: {share:.0%} of sigma_1, {size:.3g} scales"


class Monitor:
    """Watches the gradient noise of a model while it trains.

    Call `step()` after every backward pass, when gradients are unscaled and before they are cleared.

    every      steps from one reading to the next
    where      patterns of names (default: all hidden matrices)
    keep       readings of each matrix that are kept; older ones go, so that a long run does not fill the memory

    It only reads gradients, and keeps the memory of one more, the running mean, in fp32. `readings` holds the latest
    measurements, `spikes()` those of them with an entry that dominates.

    >>> _ = torch.manual_seed(0)
    >>> model = nn.Linear(40, 30, bias=False)
    >>> monitor = Monitor(model, every=10)
    >>> for step in range(1, 31):
    ...     model.weight.grad = torch.randn(30, 40)
    ...     if step == 20:
    ...         model.weight.grad[3, 5] = 100.0
    ...     _ = monitor.step()
    >>> [(reading.step, reading.spiked) for reading in monitor.readings]
    [(10, False), (20, True), (30, False)]
    >>> print(monitor.spikes()[0])
    step 20, weight, row 3 column 5: 99% of sigma_1, 99.2 scales
    """

    def __init__(
        self, model: nn.Module, every: int = 100, where: str | Sequence[str] | None = None, *, keep: int = 1000
    ) -> None:
        for option, value, unit in (("every", every, "steps"), ("keep", keep, "readings")):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{option} must be a whole number of {unit} >= 1, got {value!r}")
        chosen = select(model, where)
        self._kept = keep * len(chosen.matrices)
        self.every, self.steps = every, 0
        self.readings: list[Reading] = []
        self.skipped = 0  # steps left out because a gradient was NaN or infinite
        self._parameters = {name: model.get_parameter(name) for name in chosen.parameters}
        self._matrices: dict[str, list[NamedMatrix]] = {name: [] for name in chosen.parameters}
        for matrix in chosen.matrices:
            self._matrices[matrix.parameter].append(matrix)
        self._means: dict[str, Tensor] = {}
        self._updates = 0

    @torch.no_grad()
    def step(self) -> list[Reading]:
        """Count a step; on every `every`-th, once there is a running mean, return a reading for each matrix."""
        self.steps += 1
        reads, updates = self.steps % self.every == 0, self.steps % max(self.every // _PARTS, 1) == 0
        if not (reads or updates):
            return []
        gradients = {name: p.grad for name, p in self._parameters.items() if p.grad is not None}
        dense = {name: widen(whole(g.to_dense() if g.is_sparse else g)) for name, g in gradients.items()}
        if not all(math.isfinite(float(g.sum())) for g in dense.values()):
            self.skipped += 1
            return []
        found = self._read(dense) if reads and self._updates >= _FIRST else []
        if updates:
            self._update(dense)
        self.readings += found
        del self.readings[: -self._kept]
        return found

    def spikes(self) -> list[Reading]:
        """Return the readings with an entry that carries more than half of sigma_1 of the standardised noise."""
        return [reading for reading in self.readings if reading.spiked]

    def metrics(self) -> dict[str, float]:
        """Summarize the latest readings for a logger; empty before the first reading."""
        if not self.readings:
            return {}
        latest = [reading for reading in self.readings if reading.step == self.readings[-1].step]
        return {
            "noise/spiked": sum(reading.spiked for reading in latest) / len(latest),
            "noise/raw_spiked": sum(reading.raw_spiked for reading in latest) / len(latest),
            "noise/largest_share": max(reading.share for reading in latest),
            "noise/largest_size": max(reading.size for reading in latest),
        }

    def _read(self, gradients: dict[str, Tensor]) -> list[Reading]:
        found = []
        for name, g in gradients.items():
            if name in self._means:
                noise = g - self._means[name]
                found += [_reading(self.steps, matrix.name, matrix.of(noise)) for matrix in self._matrices[name]]
        return [reading for reading in found if reading is not None]

    def _update(self, gradients: dict[str, Tensor]) -> None:
        """Update the running mean: plain over the first gradients, exponential afterwards, with limited changes."""
        self._updates += 1
        weight = max(1 - _BETA, 1 / self._updates)
        for name, g in gradients.items():
            if name in self._means:
                self._means[name].add_(_LIMIT(g - self._means[name]), alpha=weight)
            else:
                self._means[name] = g.clone()


def _reading(step: int, name: str, noise: Tensor) -> Reading | None:
    """Measure the noise of one matrix, (m, n); None where it is zero."""
    top = float(noise.abs().amax())
    if top == 0:
        return None
    unit = noise / top
    row, column = divmod(int(unit.abs().argmax()), unit.shape[1])
    u, sigma, v = leading_triplet(unit)
    share = float((u[row] * v[column]).abs()) / sigma
    scale = float(quantile_abs(unit, 0.5, nonzero=True)) / 0.6745
    standardized = row_column_scales(unit).standardize(unit).clamp(-_LARGEST, _LARGEST)
    return Reading(step, name, sigma * top, share, row, column, 1 / scale, dominant_entry(step, standardized))
