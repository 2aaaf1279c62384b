"""The result of the probe for a model: one `MatrixNoise` per matrix, with a table and an answer in words."""

from collections import Counter
from dataclasses import dataclass

from .matrix_noise import MatrixNoise, Row
from .recommendation import Confidence, Verdict
from .structure import NoiseStructure
from .text_table import aligned


@dataclass(frozen=True)
class Report:
    """The result of `probe`; `print` it for a table and the answer, or index it by a matrix's name."""

    matrices: tuple[MatrixNoise, ...]
    samples: int  # samples with finite gradients
    bad: tuple[str, ...]  # one line for each sample that was left out, with the reason
    left_out: dict[str, str]  # matrices that were not probed, and why
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> MatrixNoise:
        for matrix in self.matrices:
            if matrix.name == name:
                return matrix
        raise KeyError(f"{name!r} was not probed: choose from {', '.join(m.name for m in self.matrices)}")

    @property
    def flagged(self) -> tuple[str, ...]:
        """The names of the matrices for which clipping is advised, as `optim.build(clip_where=...)` takes them."""
        return tuple(matrix.name for matrix in self.matrices if matrix.recommendation.clips)

    def rows(self) -> list[Row]:
        """Return one plain row for each matrix, for JSON."""
        return [matrix.row() for matrix in self.matrices]

    def summary(self) -> list[str]:
        """Return the answer in words, what the noise is, and caveats: rare spikes, notes, samples left out."""
        clip, count = len(self.flagged), len(self.matrices)
        advice = [matrix.recommendation for matrix in self.matrices]
        unknown = sum(not each.clips and each.sure != Confidence.SURE for each in advice)
        answer = f"{clip} of {count} matrices call for entry-wise clipping" if clip else "no clipping needed"
        answer += f", but {unknown} need more samples to be sure" if unknown else ""
        counts = Counter(each.structure for each in advice)
        structure = ", ".join(f"{each.summary} in {counts[each]}" for each in NoiseStructure if counts[each])
        rare = [m.name for m in self.matrices if m.recommendation.verdict == Verdict.RARE_SPIKES]
        unsure = [f"rare spikes, too few to be sure: {', '.join(rare)}"] if rare else []
        words = [f"the noise: {structure}"] if structure else []
        return [
            f"{answer} ({self.samples} samples)",
            *words,
            *unsure,
            *self.notes,
            *(f"left out: {each}" for each in self.bad),
        ]

    def __str__(self) -> str:
        return "\n".join([aligned(self.matrices), *self.summary()])
