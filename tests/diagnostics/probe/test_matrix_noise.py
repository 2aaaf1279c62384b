"""A matrix's findings as a row, and as a line of a table."""

import json

import pytest

from entryclip.diagnostics import probe
from entryclip.diagnostics.probe.text_table import HEADINGS, NARROW, aligned, cells
from entryclip.lab.paper import synthetic_layers as known
from entryclip.lab.paper.synthetic_layers import SyntheticLayers as Known
from entryclip.lab.paper.synthetic_layers import loss


def zero(signal, generator):
    return -signal


@pytest.fixture(scope="module")
def report():
    layers = {"gaussian": known.gaussian, "spiky": known.cauchy, "silent": zero}
    return probe(Known({name: (kind, (40, 30)) for name, kind in layers.items()}), loss, range(64), directions=2)


def test_rows_are_plain(report):
    rows = {row["matrix"]: row for row in report.rows()}
    again = json.loads(json.dumps(list(rows.values()), allow_nan=False))
    assert again == list(rows.values())
    assert len({tuple(row) for row in rows.values()}) == 1  # the same columns
    spiky = rows["weights.spiky"]
    assert spiky["verdict"] == "spikes"
    assert spiky["spiked"] == len(spiky["spikes"]) / 31
    assert spiky["low"][0] < 1 < spiky["high"][0] < spiky["r_hat"][0]
    assert spiky["clip"].startswith(("smooth_shrinkage(q=", "hard_clip(q="))
    assert 0.02 < spiky["alpha_gamma"] < 0.1  # 0.05
    assert spiky["sigma"] == pytest.approx(1, abs=0.05)
    assert spiky["spikes"][0][3] == max(spike[3] for spike in spiky["spikes"])
    assert spiky["standardized_spiked"] == len(spiky["standardized_spikes"]) / 31
    assert [len(spike) for spike in spiky["standardized_spikes"]] == [5] * len(spiky["standardized_spikes"])
    silent = rows["weights.silent"]
    assert silent["r_hat"] is silent["clip"] is silent["index"] is None
    assert silent["notes"] == ["no gradient: it is zero in every sample"]


def test_tail_and_fit_are_there_raw_and_standardized(report):
    """Of noise in even rows and columns they agree."""
    rows = {row["matrix"].removeprefix("weights."): row for row in report.rows()}
    for name in ("tail", "index", "index_low", "index_high", "sigma", "alpha_gamma", "contaminated", "deviance"):
        assert {name, f"standardized_{name}"} <= rows["spiky"].keys()
    for name, contaminated in (("spiky", True), ("gaussian", False)):
        assert rows[name]["contaminated"] is rows[name]["standardized_contaminated"] is contaminated
    spiky = rows["spiky"]
    assert spiky["standardized_alpha_gamma"] == pytest.approx(spiky["alpha_gamma_in_scales"], rel=0.2)
    assert spiky["deviance"] == report["weights.spiky"].fit.deviance
    assert spiky["log_rows_in_samples"] == report["weights.spiky"].standardized.in_samples.rows
    assert rows["silent"]["contaminated"] is rows["silent"]["log_rows_in_samples"] is None


def test_the_table_shows_tail_and_fit_raw_and_standardized(report):
    lines = {each.name: dict(zip(HEADINGS, cells(each), strict=True)) for each in report.matrices}
    spiky, plain = lines["weights.spiky"], lines["weights.gaussian"]
    found = report["weights.spiky"]
    sides = (found, found.standardized)
    assert spiky["fit: raw, std"] == ", ".join(f"{side.fit.alpha_gamma.value:.2g}" for side in sides)
    assert plain["fit: raw, std"] == "none, none"
    words = {"power law": f"{found.tail.index:.2g}", "not a power law": "none"}
    assert spiky["tail: raw, std"].partition(", ")[0] == words.get(found.tail.verdict, found.tail.verdict)
    assert len(plain["tail: raw, std"].split(", ")) == 2


def test_samples_of_another_size_correlate_but_not_in_units_of_their_scale():
    """Gaussian noise times another factor in each sample: max |E| and sigma_1(E) grow together, no entry drives it."""
    found = probe(Known({"sizes": (known.multiplicative, (40, 30))}), loss, range(128), directions=2)["weights.sizes"]
    assert found.correlation.rho > 0.9
    assert found.relative.rho < 0.7
    assert found.row()["relative"] == found.relative.rho
    low, high, count = found.marginal
    assert count.sum() == found.samples * 40 * 30
    assert count[(low >= 0.6745) & (high <= 100)].sum() == pytest.approx(count.sum() / 2, rel=0.05)


def test_a_line_for_each(report):
    lines = aligned(report.matrices).splitlines()
    assert lines[0].split("  ")[0] == "matrix"
    assert len(lines) == 4
    assert len(cells(report.matrices[0])) == len(HEADINGS)
    narrow = aligned(report.matrices, NARROW).splitlines()
    assert max(map(len, narrow)) <= 100
    assert "none: nothing to see" in narrow[2]


def test_names(report):
    assert report["weights.gaussian"].recommendation.verdict == "no spikes"
    with pytest.raises(KeyError, match=r"'nope' was not probed: choose from weights\.gaussian"):
        report["nope"]
