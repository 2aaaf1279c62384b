"""Does the gradient noise of a model call for entry-wise clipping? Measured matrix by matrix.

    pass 1    half A of the samples: block means, the signal G by their median, its singular directions
    pass 2    half B: its own centre, and the plain mean of all samples, which the paper's estimator needs
    pass 3    half B again: the noise of each sample, gradient less centre, straight into its statistics

The memory is that of a few gradients, never samples x parameters: five block means and a gradient in the first pass,
three block means, the plain mean, one sign per entry and a gradient in the second, two means in the third.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..dtensor import whole
from .directions import Directions, leading_directions
from .gradients import Gradients, Loss, untouched
from .halves import BLOCKS_A, BLOCKS_B, Blocks
from .measured import MatrixNoise, measure, unmeasured
from .slices import Matrix, select
from .stream import Axes, Stream
from .table import aligned

LEAST = 10  # samples: five for each half
_TOLERANCE = 1e-6  # of the directions: they must be the signal's, not exact


@dataclass(frozen=True)
class Report:
    """What `probe` found, a `MatrixNoise` for each matrix; `print` it for a table."""

    matrices: tuple[MatrixNoise, ...]
    samples: int  # that were used
    bad: tuple[str, ...]  # samples that were left out, and why
    left_out: dict[str, str]  # matrices that were not looked at, and why
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> MatrixNoise:
        for matrix in self.matrices:
            if matrix.name == name:
                return matrix
        raise KeyError(f"{name!r} was not probed: choose from {', '.join(m.name for m in self.matrices)}")

    @property
    def flagged(self) -> tuple[str, ...]:
        """The matrices for which clipping is advised."""
        return tuple(matrix.name for matrix in self.matrices if matrix.recommendation.clips)

    def rows(self) -> list[dict[str, Any]]:
        """One plain row for each matrix."""
        return [matrix.row() for matrix in self.matrices]

    def summary(self) -> list[str]:
        """The answer in words, and what one should know about it."""
        clip, all_of = len(self.flagged), len(self.matrices)
        unknown = sum(not m.recommendation.clips and m.recommendation.sure != "sure" for m in self.matrices)
        answer = f"{clip} of {all_of} matrices call for entry-wise clipping" if clip else "no clipping needed"
        answer += f", but {unknown} need more samples to be sure" if unknown else ""
        rare = [m.name for m in self.matrices if m.recommendation.verdict == "rare spikes"]
        unsure = [f"rare spikes, too few to be sure: {', '.join(rare)}"] if rare else []
        return [f"{answer} ({self.samples} samples)", *unsure, *self.notes, *(f"left out: {each}" for each in self.bad)]

    def __str__(self) -> str:
        return "\n".join([aligned(self.matrices), *self.summary()])


def probe(
    model: nn.Module,
    loss: Loss,
    batches: Iterable[Any],
    where: str | Sequence[str] | None = None,
    directions: int = 8,
    *,
    samples: int = 64,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> Report:
    """Measure the gradient noise of the matrices of a model, which is left exactly as it was.

    loss         loss(model, batch) is one number: an ordinary forward pass
    batches      each is one sample of the noise: a sequence, or a microbatch. The first `samples` of them are taken
                 and kept, as half of them are needed twice
    where        patterns of names, as "blocks.*.attn.qkv_w.v" (default: all hidden matrices)
    directions   how many singular directions of the signal to look along
    progress     is told how many of the gradients are done

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
    with untouched(model):
        taken = list(itertools.islice(batches, samples))
        _check_count(len(taken))
        run = _Run(Gradients(model, loss, chosen.parameters), taken, progress)
        signals = run.signals(chosen.matrices, directions)
        found = run.noise(chosen.matrices, signals, directions)
    good = len(taken) - len(run.gradients.bad)
    notes = () if len(taken) == samples else (f"the batches ran out after {len(taken)} of {samples}",)
    return Report(tuple(found), good, tuple(run.gradients.bad.values()), chosen.left_out, notes)


@dataclass
class _Signal:
    """What half A says about one matrix."""

    directions: Directions
    bound: float  # max |G_ij|

    @classmethod
    def of(cls, g: Tensor, count: int) -> "_Signal":
        return cls(leading_directions(g, count, _TOLERANCE), float(g.abs().amax()))


class _Run:
    """The three passes."""

    def __init__(self, gradients: Gradients, batches: list[Any], progress: Callable[[int, int], object]) -> None:
        self.gradients = gradients
        # The samples of both halves from all over the run. An odd number for the noise: its median is one of them.
        second = len(batches) // 2
        second -= (second + 1) % 2
        odd = set(range(1, 2 * second, 2))
        self.a = [(i, batch) for i, batch in enumerate(batches) if i not in odd]
        self.b = [(i, batch) for i, batch in enumerate(batches) if i in odd]
        self.done, self.total, self.progress = 0, len(self.a) + 2 * len(self.b), progress
        self.mean: dict[str, Tensor] = {}  # of half A, then of all
        self.positive: dict[str, Tensor] = {}  # where the signal is

    def signals(self, matrices: Sequence[Matrix], directions: int) -> dict[str, _Signal]:
        """Half A: the directions of each matrix."""
        blocks, medians = self._blocks(self.a, BLOCKS_A), {}
        self._good(self.a)
        for name in blocks.names():  # all blocks are given up before anything is made of them
            medians[name], self.mean[name] = blocks.take(name)
            self.positive[name] = medians[name] > 0
        return {matrix.name: _Signal.of(matrix.of(medians[matrix.parameter]), directions) for matrix in matrices}

    def noise(self, matrices: Sequence[Matrix], signals: dict[str, _Signal], directions: int) -> list[MatrixNoise]:
        """Half B, twice: the centre, then the noise."""
        blocks, centre = self._blocks(self.b, BLOCKS_B), {}
        count_a, count_b = self._good(self.a), self._good(self.b)
        strength: dict[str, float] = {}
        for name in blocks.names():
            centre[name], mean = blocks.take(name)
            mean = whole(mean)
            first = whole(self.mean[name])
            for matrix in matrices:
                if matrix.parameter == name:
                    strength[matrix.name] = float((matrix.of(first).double() * matrix.of(mean).double()).sum())
            self.mean[name] = first.lerp_(mean, count_b / (count_a + count_b))
        means = {m.name: m.of(self.mean[m.parameter]) for m in matrices}
        plain = {name: leading_directions(mean, directions, _TOLERANCE) for name, mean in means.items()}
        streams = {
            name: Stream(Axes.of(signals[name].directions, mean), Axes.of(plain[name], mean))
            for name, mean in means.items()
        }
        self._stream(matrices, streams, centre)
        return [self._measured(m, signals[m.name], plain[m.name], streams[m.name], strength) for m in matrices]

    def _blocks(self, half: list[tuple[int, Any]], count: int) -> Blocks:
        blocks = Blocks(min(count, len(half)))
        for i, batch in half:
            if (found := self.gradients(i, batch)) is not None:
                blocks.add(found)
            del found  # before the next one is made
            self._advance()
        return blocks

    def _stream(self, matrices: Sequence[Matrix], streams: dict[str, Stream], centre: dict[str, Tensor]) -> None:
        for i, batch in self.b:
            found = None if i in self.gradients.bad else self.gradients(i, batch)
            while found:  # each is given up when it is done
                name, g = found.popitem()
                all_of = (whole(g), centre[name], self.mean[name], self.positive[name])
                for matrix in (each for each in matrices if each.parameter == name):
                    streams[matrix.name].add(i, *(matrix.of(x) for x in all_of))
                del g, all_of
            self._advance()

    def _measured(
        self, matrix: Matrix, signal: _Signal, plain: Directions, stream: Stream, strength: dict[str, float]
    ) -> MatrixNoise:
        if not stream.samples and not bool(matrix.of(self.mean[matrix.parameter]).any()):
            return unmeasured(matrix, "no gradient: it is zero in every sample")
        if len(stream.samples) < LEAST // 2:
            few = f"only {len(stream.samples)} samples have a gradient that differs from the others'"
            return unmeasured(matrix, f"{few}: {LEAST // 2} are needed")
        return measure(matrix, stream, signal.directions, plain, bound=signal.bound, signal=strength[matrix.name])

    def _good(self, half: list[tuple[int, Any]]) -> int:
        """How many samples of a half have finite gradients, if they are enough."""
        count = sum(i not in self.gradients.bad for i, _ in half)
        if count < LEAST // 2:
            few = f"{count} of {len(half)} samples of one half of the batches have finite gradients"
            raise ValueError(f"{few}, {LEAST // 2} are needed ({next(iter(self.gradients.bad.values()))})")
        return count

    def _advance(self) -> None:
        self.done += 1
        self.progress(self.done, self.total)


def _check_count(count: int) -> None:
    if count < LEAST:
        raise ValueError(
            f"the noise of a gradient needs at least {LEAST} batches, half of them for its signal, got {count}: "
            "give more of them, or split a large batch into single sequences"
        )
