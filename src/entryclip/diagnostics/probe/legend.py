"""What stands below the probe's table: a line for each of its columns, and the entries that stand out most."""

from collections.abc import Sequence

from .matrix_noise import MatrixNoise
from .standardized import DetectedSpike
from .structure import NoiseStructure
from .text_table import HEADINGS

ENTRIES, ROWS_AND_COLUMNS, NEITHER = NoiseStructure.ENTRIES, NoiseStructure.ROWS_AND_COLUMNS, NoiseStructure.NEITHER
EXPLANATIONS = dict(
    zip(
        HEADINGS,
        (
            "name of the parameter, or of a block inside of it",
            "rows x columns",
            "do single entries stand out? 1: as in Gaussian noise with these scales, [its 95 % band]; far above: yes",
            "the same against Gaussian noise whose rows and columns have equal scales",
            "index of a power law (Cauchy: 1), or none; of the entries as they are, and over their scales (std)",
            "heavy part of (1 - alpha) N(0, s^2) + alpha Cauchy(gamma): alpha gamma, or none; as they are, and std",
            "what the best clip would gain, 2: as much as twice the batch; as they are, and over their scales (std)",
            "samples in which one entry carries more than half of sigma_1; as they are, and over their scales (std)",
            f"what makes entries large: {ENTRIES}, {ROWS_AND_COLUMNS} (of different scale), or {NEITHER}",
            "the clip and where (auto: ec.auto(); microbatch: optim.ClippedMean; pre: the mean gradient); or why none",
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
    """Return one line for each matrix in which single entries stand out from their rows and columns, the worst first.

    It names the entry with the largest share of sigma_1 of the noise over the scales of its rows and columns.
    """
    worst = [(_standardized_spikes(each)[0], each) for each in matrices if _standardized_spikes(each)]
    worst.sort(key=lambda pair: -pair[0].share)
    lines = [
        f"{each.name}: {spike}, {spike.size:.3g} times the scale of its row and column" for spike, each in worst[:MOST]
    ]
    hidden = len(worst) - len(lines)
    return [*lines, *([f"and {hidden} more matrices with such entries: all are in the rows"] if hidden else [])]


def only_raw(matrices: Sequence[MatrixNoise]) -> list[str]:
    """Return a line that names the matrices in which entries carry sigma_1 of the noise as it is alone; none without.

    >>> only_raw([])
    []
    """
    names = [each.name for each in matrices if each.spikes and not _standardized_spikes(each)]
    if not names:
        return []
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return [f"only in the noise as it is (raw), by the scales of rows and columns: {', '.join(names[:MOST])}{more}"]


def _standardized_spikes(found: MatrixNoise) -> tuple[DetectedSpike, ...]:
    return found.standardized.spikes if found.standardized else ()
