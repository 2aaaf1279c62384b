"""The three passes of a probe over the samples of a model's gradient.

    pass 1    first half of the samples: block means, the signal G as their median, its singular directions
    pass 2    second half: its own robust center, and the plain mean of all samples, which the paper's estimator needs
    pass 3    second half again: the noise of each sample, gradient less center, added to the matrix's statistics

The memory is that of a few gradients, never samples x parameters: five block means and a gradient in the first pass,
three block means, the plain mean, one sign per entry and a gradient in the second, two means in the third.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from ...dtensor import whole
from ..directions import Directions, leading_directions
from ..matrices import NamedMatrix
from .center import NOISE_BLOCKS, SIGNAL_BLOCKS, BlockMeans
from .estimates import TOLERANCE, Signal, estimate_noise
from .gradients import SampleGradients
from .matrix_noise import MatrixNoise, unmeasured
from .noise_statistics import DirectionTensors, NoiseStatistics

LEAST = 10  # samples a probe needs: five for each half

Progress = Callable[[int, int], object]  # (gradients done, gradients in all)
Half = list[tuple[int, Any]]  # samples: their number and their batch


class Passes:
    """Runs the three passes: first `signals`, then `noise`."""

    def __init__(
        self, gradients: SampleGradients, batches: list[Any], matrices: Sequence[NamedMatrix], progress: Progress
    ) -> None:
        self.gradients, self.matrices = gradients, matrices
        # Samples alternate between the halves, so that both see all of the data. The second half has an odd number, so
        # that a median over it is one of its samples.
        count = len(batches) // 2
        count -= (count + 1) % 2
        second = set(range(1, 2 * count, 2))
        self.first_half: Half = [(i, batch) for i, batch in enumerate(batches) if i not in second]
        self.second_half: Half = [(i, batch) for i, batch in enumerate(batches) if i in second]
        self.done, self.total, self.progress = 0, len(self.first_half) + 2 * len(self.second_half), progress
        self.mean: dict[str, Tensor] = {}  # plain mean by parameter: of the first half, then of all samples
        self.positive: dict[str, Tensor] = {}  # where the signal is positive, by parameter

    def signals(self, directions: int) -> dict[str, Signal]:
        """Make the first pass and return the signal of each matrix, by its name."""
        blocks, medians = self._block_means(self.first_half, SIGNAL_BLOCKS), {}
        self._count_good(self.first_half)
        for name in blocks.names():  # all blocks are freed before directions are computed
            medians[name], self.mean[name] = blocks.pop(name)
            self.positive[name] = medians[name] > 0
        return {each.name: Signal.of(each.of(medians[each.parameter]), directions) for each in self.matrices}

    def noise(self, signals: dict[str, Signal], directions: int) -> list[MatrixNoise]:
        """Make the second and third pass and return the result for each matrix."""
        center, strength = self._centers()
        means = {each.name: each.of(self.mean[each.parameter]) for each in self.matrices}
        plain = {name: leading_directions(mean, directions, TOLERANCE) for name, mean in means.items()}
        statistics = {
            name: NoiseStatistics(
                DirectionTensors.of(signals[name].directions, mean), DirectionTensors.of(plain[name], mean)
            )
            for name, mean in means.items()
        }
        self._accumulate(statistics, center)
        return [
            self._result(each, signals[each.name], plain[each.name], statistics[each.name], strength[each.name])
            for each in self.matrices
        ]

    def _centers(self) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Make the second pass: the robust center of each parameter, and an estimate of |G|^2 for each matrix.

        The latter is the inner product of the means of the halves, whose noise is independent.
        """
        blocks = self._block_means(self.second_half, NOISE_BLOCKS)
        first_count, second_count = self._count_good(self.first_half), self._count_good(self.second_half)
        center: dict[str, Tensor] = {}
        strength: dict[str, float] = {}
        for name in blocks.names():
            center[name], second = blocks.pop(name)
            first, second = whole(self.mean[name]), whole(second)
            for matrix in self._matrices_of(name):
                strength[matrix.name] = float((matrix.of(first).double() * matrix.of(second).double()).sum())
            self.mean[name] = first.lerp_(second, second_count / (first_count + second_count))
        return center, strength

    def _block_means(self, half: Half, count: int) -> BlockMeans:
        """Return the means of `count` blocks of the samples of a half that have finite gradients."""
        blocks = BlockMeans(min(count, len(half)))
        for i, batch in half:
            if (found := self.gradients(i, batch)) is not None:
                blocks.add(found)
            del found  # frees it before the next gradient is made
            self._advance()
        return blocks

    def _accumulate(self, statistics: dict[str, NoiseStatistics], center: dict[str, Tensor]) -> None:
        """Make the third pass: add the noise of each sample of the second half to the statistics of its matrices."""
        for i, batch in self.second_half:
            found = None if i in self.gradients.bad else self.gradients(i, batch)
            while found:  # each gradient is freed as soon as it is used
                name, g = found.popitem()
                tensors = (whole(g), center[name], self.mean[name], self.positive[name])
                for matrix in self._matrices_of(name):
                    statistics[matrix.name].add(i, *(matrix.of(x) for x in tensors))
                del g, tensors
            self._advance()

    def _result(
        self, matrix: NamedMatrix, signal: Signal, plain: Directions, statistics: NoiseStatistics, strength: float
    ) -> MatrixNoise:
        """Return the result for one matrix, also where it has no gradient or too few samples have one."""
        if not statistics.samples and not bool(matrix.of(self.mean[matrix.parameter]).any()):
            return unmeasured(matrix.name, matrix.shape, "no gradient: it is zero in every sample")
        if len(statistics.samples) < LEAST // 2:
            few = f"only {len(statistics.samples)} samples have a gradient that differs from the others'"
            return unmeasured(matrix.name, matrix.shape, f"{few}: {LEAST // 2} are needed")
        return estimate_noise(matrix, statistics, signal, plain, strength=strength)

    def _matrices_of(self, parameter: str) -> list[NamedMatrix]:
        return [each for each in self.matrices if each.parameter == parameter]

    def _count_good(self, half: Half) -> int:
        """Return how many samples of a half have finite gradients; raise an error where they are too few."""
        count = sum(i not in self.gradients.bad for i, _ in half)
        if count < LEAST // 2:
            few = f"{count} of {len(half)} samples of one half of the batches have finite gradients"
            raise ValueError(f"{few}, {LEAST // 2} are needed ({next(iter(self.gradients.bad.values()))})")
        return count

    def _advance(self) -> None:
        self.done += 1
        self.progress(self.done, self.total)
