"""The tables and the figure of a diagnosis: raw and standardised noise side by side."""

import pytest

from entryclip.diagnostics import probe
from entryclip.lab.diagnosis import tables
from entryclip.lab.diagnosis.figures import figures
from entryclip.lab.paper.synthetic_layers import SyntheticLayers, cauchy, gaussian, loss


def crossed(signal, generator):
    """Gaussian noise with one large row that crosses one large column: raw, one entry carries sigma_1."""
    noise = gaussian(signal, generator)
    noise[3] *= 100
    noise[:, 5] *= 100
    return noise


@pytest.fixture(scope="module")
def report():
    kinds = {"crossed": crossed, "spiky": cauchy}
    return probe(SyntheticLayers({name: (kind, (40, 30)) for name, kind in kinds.items()}), loss, range(40))


def test_standardized_spikes_come_first_and_raw_ones_have_a_table_of_their_own(report):
    found = tables(report, report.rows())
    own, raw = (rows for caption, rows in found.items() if caption.startswith("Entries that"))
    assert {row["matrix"] for row in own} == {"weights.spiky"}
    assert {"sample", "row", "column", "size"} <= own[0].keys()
    assert {row["matrix"] for row in raw} == {"weights.crossed", "weights.spiky"}


def test_each_number_is_there_twice(report):
    (rows,) = (rows for caption, rows in tables(report, report.rows()).items() if caption.startswith("As it is, and"))
    row = {each["matrix"]: each for each in rows}["weights.crossed"]
    for name in ("tail", "tail index", "fit: alpha gamma in scales", "fit: deviance", "gain of the best clip"):
        assert {f"{name}, raw", f"{name}, standardised"} <= row.keys()
    assert row["share of spiked samples, raw"] > 0.75
    assert row["share of spiked samples, standardised"] == 0
    assert row["in single samples, rows"] == pytest.approx(row["SD of log scale, rows"], abs=0.1)


def test_the_figure_rests_on_the_standardized_noise_and_draws_rows_of_earlier_versions(report):
    rows = report.rows()
    bars = figures(rows)["noise"].axes[2].patches
    assert [bar.get_width() for bar in bars] == [row["standardized_spiked"] for row in rows]
    assert bars[0].get_width() == 0
    old = [{key: value for key, value in row.items() if not key.startswith("standardized_")} for row in rows]
    assert [bar.get_width() for bar in figures(old)["noise"].axes[2].patches] == [row["spiked"] for row in rows]


def test_rows_from_before_the_standardized_spikes_are_drawn_and_listed(report):
    """They have a standardised R-hat, but neither those spikes nor fits side by side."""
    keys = ("standardized_spikes", "alpha_gamma_in_scales")
    old = [{key: value for key, value in row.items() if key not in keys} for row in report.rows()]
    assert [bar.get_width() for bar in figures(old)["noise"].axes[2].patches] == [row["spiked"] for row in old]
    assert not any(caption.startswith("As it is, and") for caption in tables(report, old))
