"""A monitor of gradient noise during training, from the gradients that a step computes anyway.

The noise of a step is its gradient less the running mean of the gradients before it, so it costs no further backward
pass. A reading answers the question on which the probe's advice rests: does one entry carry the largest singular value
of the noise, also when the scales of rows and columns are divided out? It has no R-hat: that of one step says nothing
(for Gaussian noise it exceeds 10 in one step of six).

Between readings an alarm asks the second half of that question at every step, of the matrices that the screen of
spike_screen.py suspects: it costs one pass over the gradient.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..arrays import widen
from ..clip import Clip
from ..dtensor import is_dtensor, whole
from ..operators import hard_clip
from ..scales import RowColumnScales, row_column_scales
from ..thresholds import Scale
from .matrices import NamedMatrix, select
from .probe.standardized import dominant_entry
from .probe.structure import NoiseStructure
from .reading import Reading, looks_anomalous, take_reading
from .spike_screen import SpikeScreen, dominant_size

_PARTS = 10  # updates of the running mean between two readings
_BETA = 0.9  # its memory is ten updates, that is about `every` steps
_FIRST = 3  # updates before the first reading; they follow each other step by step
_LARGEST = 1e30  # standardised entries beyond it would overflow in fp32
_SIGNAL = 1.5  # the mean over the noise, medians of sizes, from which on the mean is signal: scales that fell leave 1
_ALONE = 3  # entries of a row or column that are too few to give it a scale
_LIMIT = Clip(hard_clip, Scale(5.0))  # limits a change of the mean: else a spike would show in later readings too


class Monitor:
    """Watches the gradient noise of a model while it trains.

    Call `step()` after every backward pass, when gradients are unscaled and before they are cleared.

    every      steps from one reading of all matrices to the next
    where      patterns of names (default: all hidden matrices)
    alarm      look at every step for a new entry that dominates its matrix: such a matrix gets a reading at once.
               (Not in parameters that are sharded over processes, whose gradients would have to be gathered.)
    keep       readings of each matrix that are kept; older ones go, so that a long run does not fill the memory

    It only reads gradients, and keeps the memory of one more, the running mean, in fp32. `readings` holds the latest
    measurements, `spikes()` those of them with an entry that dominates, with the step, the batch and where the entry
    is. Each says whether the noise has anomalous entries, rows and columns of different scale, or neither. Save
    `state_dict()` with a checkpoint and load it again, and the steps go on from there.

    >>> _ = torch.manual_seed(0)
    >>> model = nn.Linear(40, 30, bias=False)
    >>> monitor = Monitor(model, every=10, alarm=True)
    >>> for step in range(1, 31):
    ...     model.weight.grad = torch.randn(30, 40)
    ...     if step == 20:
    ...         model.weight.grad[3, 5] = 100.0
    ...     _ = monitor.step(batch=step - 1)
    >>> [(reading.step, reading.spiked) for reading in monitor.readings]
    [(10, False), (20, True), (30, False)]
    >>> spike = monitor.spikes()[0]
    >>> spike.step, spike.batch, spike.place, str(spike.structure)
    (20, 19, (3, 5), 'anomalous entries')
    """

    def __init__(
        self,
        model: nn.Module,
        every: int = 100,
        where: str | Sequence[str] | None = None,
        *,
        alarm: bool = False,
        keep: int = 1000,
    ) -> None:
        for option, value, unit in (("every", every, "steps"), ("keep", keep, "readings")):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{option} must be a whole number of {unit} >= 1, got {value!r}")
        chosen = select(model, where)
        self._kept = keep * len(chosen.matrices)
        self.every, self.steps, self.alarm = every, 0, alarm
        self.readings: list[Reading] = []
        self.skipped = 0  # steps left out because a gradient was NaN or infinite
        self._parameters = {name: model.get_parameter(name) for name in chosen.parameters}
        self._matrices: dict[str, list[NamedMatrix]] = {name: [] for name in chosen.parameters}
        for matrix in chosen.matrices:
            self._matrices[matrix.parameter].append(matrix)
        self._means: dict[str, Tensor] = {}
        self._screens = {matrix.name: SpikeScreen() for matrix in chosen.matrices}
        self._updates = 0

    @torch.no_grad()
    def step(self, batch: Any = None) -> list[Reading]:
        """Count a step and return the readings that it gives, once there is a running mean.

        batch      what to remember of the batch with each reading, such as its number

        On every `every`-th step that is one for each matrix; in between, with `alarm`, one for each matrix in which an
        entry dominates.
        """
        self.steps += 1
        reads = self.steps % self.every == 0
        updates = self.steps % max(self.every // _PARTS, 1) == 0 or self._updates < _FIRST
        suspects = self._suspects() if self.alarm and not reads and self._updates >= _FIRST else []
        dense = self._gradients(self._parameters if reads or updates else {each.parameter for each in suspects})
        if dense is None:
            return []
        found = self._read(dense, None if reads else suspects, batch) if self._updates >= _FIRST else []
        if updates:
            self._update(dense)
        self.readings += found
        del self.readings[: -self._kept]
        return found

    def _gradients(self, names: Iterable[str]) -> dict[str, Tensor] | None:
        """Return these parameters' gradients, whole and in fp32; None, and a step that was skipped, if not finite."""
        gradients = {name: g for name in names if (g := self._parameters[name].grad) is not None}
        dense = {name: widen(whole(g.to_dense() if g.is_sparse else g)) for name, g in gradients.items()}
        if all(math.isfinite(float(g.sum())) for g in dense.values()):
            return dense
        self.skipped += 1
        return None

    def spikes(self) -> list[Reading]:
        """Return the readings with an entry that carries more than half of sigma_1 of the standardised noise."""
        return [reading for reading in self.readings if reading.spiked]

    def metrics(self, since: int | None = None) -> dict[str, float]:
        """Summarize the readings after step `since` for a logger, by default the latest; empty where there are none."""
        if not self.readings:
            return {}
        first = self.readings[-1].step if since is None else since + 1
        latest = [reading for reading in self.readings if reading.step >= first]
        if not latest:
            return {}
        own = [reading.standardized for reading in latest if reading.standardized is not None]
        uneven = [reading.structure is NoiseStructure.ROWS_AND_COLUMNS for reading in latest]
        return {
            "noise/spiked": sum(reading.spiked for reading in latest) / len(latest),
            "noise/raw_spiked": sum(reading.raw_spiked for reading in latest) / len(latest),
            "noise/rows_and_columns": sum(uneven) / len(latest),
            "noise/largest_share": max(reading.share for reading in latest),
            "noise/largest_size": max(reading.size for reading in latest),
            "noise/standardized_largest_share": max((entry.share for entry in own), default=0.0),
            "noise/standardized_largest_size": max((entry.size for entry in own), default=0.0),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return what a monitor of the same model needs to go on from this step: counts and the running means."""
        return {
            "steps": self.steps,
            "skipped": self.skipped,
            "updates": self._updates,
            "means": {name: mean.clone() for name, mean in self._means.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state. Readings are not part of it: the list begins anew."""
        self.steps, self.skipped, self._updates = state["steps"], state["skipped"], state["updates"]
        places = {name: p.device for name, p in self._parameters.items()}
        self._means = {name: mean.to(places[name]) for name, mean in state["means"].items() if name in places}

    def _suspects(self) -> list[NamedMatrix]:
        """Return the matrices in which one entry may dominate, by the screen, and those without a screen yet."""
        screened, statistics, unknown = [], [], []
        for name, p in self._parameters.items():
            if p.grad is None or p.grad.is_sparse or is_dtensor(p.grad):
                continue
            for matrix in self._matrices[name]:
                if self._screens[matrix.name].is_ready:
                    screened.append(matrix)
                    statistics.append(self._screens[matrix.name].statistic(matrix.of(widen(p.grad))))
                else:
                    unknown.append(matrix)
        values = torch.stack(statistics).tolist() if statistics else []  # the one place that waits for a device
        found = zip(screened, values, strict=True)
        return unknown + [matrix for matrix, value in found if self._screens[matrix.name].is_suspect(value)]

    def _read(self, gradients: dict[str, Tensor], suspects: list[NamedMatrix] | None, batch: Any) -> list[Reading]:
        """Return the readings of all matrices, or of those suspects in which an entry dominates."""
        matrices = suspects if suspects is not None else [each for some in self._matrices.values() for each in some]
        found = []
        for matrix in matrices:
            if matrix.parameter not in gradients or matrix.parameter not in self._means:
                continue
            g, mean = gradients[matrix.parameter], matrix.of(self._means[matrix.parameter])
            noise = matrix.of(g) - mean
            scales, standardized = _standardized(noise)
            if looks_anomalous(standardized):
                standardized = _without_the_mean(matrix.of(g), mean, standardized)
            spike = dominant_entry(self.steps, standardized)
            if self.alarm and spike is None:
                self._set_scales(matrix, scales, matrix.of(g), renew=suspects is None)
            if suspects is None or (spike is not None and spike.size > dominant_size(*noise.shape)):
                found.append(take_reading(self.steps, matrix, noise, standardized, batch, tuple(g.shape)))
        return [reading for reading in found if reading is not None]

    def _set_scales(self, matrix: NamedMatrix, scales: RowColumnScales, g: Tensor, *, renew: bool) -> None:
        """Give the screen of a matrix the scales of its noise if it has none, or with `renew`, unless they are 0."""
        screen = self._screens[matrix.name]
        if (renew or not screen.is_ready) and float(scales.overall) > 0:
            screen.set_scales(scales, g)

    def _update(self, gradients: dict[str, Tensor]) -> None:
        """Update the running mean: plain over the first gradients, exponential afterwards, with limited changes."""
        self._updates += 1
        weight = max(1 - _BETA, 1 / self._updates)
        for name, g in gradients.items():
            if name in self._means:
                self._means[name].add_(_LIMIT(g - self._means[name]), alpha=weight)
            else:
                self._means[name] = g.clone()


def _without_the_mean(g: Tensor, mean: Tensor, standardized: Tensor) -> Tensor:
    """Return the gradient (m, n) over its scales where the largest entry of `standardized` is an ordinary one of that.

    Where the scales of rows and columns change from step to step, those of the mean are not those of `g`, and entries
    stand out in their difference that are ordinary in both. An anomalous entry of this step stands out in `g` too,
    unless the signal hides it, or it is nearly alone in its row or column, whose scale it then is: so this is not asked
    where the mean is larger than what `g` differs from it by, in the matrix or in the row or column of the largest
    entry, nor where these are zero but for a few entries. Then g - mean over its scales is returned.
    """
    row, column = divmod(int(standardized.abs().argmax()), standardized.shape[1])
    if bool(g[row, column] != 0) and min(int(g[row].count_nonzero()), int(g[:, column].count_nonzero())) <= _ALONE:
        return standardized
    signal, noise = mean.abs(), (g - mean).abs()
    parts = [(signal, noise), (signal[row], noise[row]), (signal[:, column], noise[:, column])]
    if any(float(a.median()) > _SIGNAL * float(b.median()) for a, b in parts):
        return standardized
    alone = _standardized(g)[1]
    stands_out = float(alone[row, column].abs()) > dominant_size(*g.shape) / 2
    return standardized if stands_out else alone


def _standardized(noise: Tensor) -> tuple[RowColumnScales, Tensor]:
    """Return the scales of rows and columns of `noise`, (m, n), and the noise over them."""
    top = noise.abs().amax()
    unit = noise / torch.where(top > 0, top, 1.0)
    scales = row_column_scales(unit)
    standardized = scales.standardize(unit).clamp(-_LARGEST, _LARGEST)
    return scales._replace(overall=scales.overall * top), standardized
