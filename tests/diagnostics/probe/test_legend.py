"""What stands below the probe's table: its columns in words, and the entries that stand out."""

import pytest
import torch

from entryclip.diagnostics import probe
from entryclip.diagnostics.probe.legend import EXPLANATIONS, explain_columns, largest_entries, only_raw
from entryclip.diagnostics.probe.structure import NoiseStructure
from entryclip.diagnostics.probe.text_table import HEADINGS, NARROW
from entryclip.lab.paper.synthetic_layers import SyntheticLayers, gaussian, loss


def crossed(signal, generator):
    """Gaussian noise with one large row that crosses one large column: nearly every sample has a raw spike there."""
    noise = torch.randn(signal.shape, generator=generator)
    noise[3] *= 100
    noise[:, 5] *= 100
    return noise


def spiky(signal, generator):
    noise = torch.randn(signal.shape, generator=generator)
    noise[torch.randint(40, (1,), generator=generator), 2] = 60.0
    return noise


@pytest.fixture(scope="module")
def report():
    kinds = {"crossed": crossed, "plain": gaussian, "spiky": spiky}
    return probe(SyntheticLayers({name: (kind, (40, 30)) for name, kind in kinds.items()}), loss, range(40))


def test_entries_that_stand_out_are_those_of_the_standardized_noise(report):
    """Where a large row crosses a large column, an ordinary entry carries more of sigma_1 than any real spike."""
    assert len(report["weights.crossed"].spikes) > 14
    assert report["weights.crossed"].standardized.spikes == ()
    assert report["weights.crossed"].recommendation.structure == NoiseStructure.ROWS_AND_COLUMNS
    (line,) = largest_entries(report.matrices)
    worst = report["weights.spiky"].standardized.spikes[0]
    assert line == f"weights.spiky: {worst}, {worst.size:.3g} times the scale of its row and column"
    (raw,) = only_raw(report.matrices)
    assert raw.startswith("only in the noise as it is (raw)")
    assert raw.endswith(": weights.crossed")


def test_every_column_is_explained_in_the_words_that_stand_in_it():
    assert tuple(EXPLANATIONS) == HEADINGS
    assert len(explain_columns(NARROW)) == len(NARROW)
    for structure in NoiseStructure:
        assert structure in EXPLANATIONS["noise"]
    assert "heavy tails" not in EXPLANATIONS["noise"]
