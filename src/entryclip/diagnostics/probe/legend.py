"""What stands below the probe's table: a line for each of its columns, and the entries that stand out most."""

from collections.abc import Sequence

from .matrix_noise import MatrixNoise
from .text_table import HEADINGS

EXPLANATIONS = dict(
    zip(
        HEADINGS,
        (
            "name of the parameter, or of a block inside of it",
            "rows x columns",
            "do single entries stand out? 1: as in Gaussian noise with these scales, [its 95 % band]; far above: yes",
            "the same against Gaussian noise whose rows and columns have equal scales",
            "of the entries over the scales of their rows and columns: index of a power law (Cauchy: 1), or none",
            "what the best clip would gain, 2: as much as twice the batch; as they are, and over their scales (std)",
            "samples in which one entry carries more than half of sigma_1; as they are, and over their scales (std)",
            "what makes entries large: heavy tails, rows and columns of different scale, or neither",
            "the clip and where it acts (microbatch: optim.ClippedMean; pre: the mean gradient), or none, and why",
            "how sure the advice is; unsure: take more samples",
        ),
        strict=True,
    )
)
MOST = 10  # entries that are listed


def explain_columns(headings: Sequence[str] = HEADINGS) -> list[str]:
    """Return one line for each of these columns of the table."""
    return [f"{name}: {EXPLANATIONS[name]}" for name in headings]


def largest_entries(matrices: Sequence[MatrixNoise]) -> list[str]:
    """Return one line for each matrix with spikes: the entry with the largest share of sigma_1, the worst first."""
    worst = [(each.spikes[0], each) for each in matrices if each.spikes]
    worst.sort(key=lambda pair: -pair[0].share)
    lines = [f"{each.name}: {spike}, {spike.size:.3g} times the scale" for spike, each in worst[:MOST]]
    hidden = len(worst) - len(lines)
    return [*lines, *([f"and {hidden} more matrices with such entries: all are in the rows"] if hidden else [])]
