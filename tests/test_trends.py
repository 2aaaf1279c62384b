"""The comparison of grids on docs/pretraining.md: what a doubling of the batch, the width or the length adds."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.trends import MEASURES, PAIRS, Point, figure, point_lines, points, slope_lines, slopes

from entryclip.lab.paper.intervals import Interval

SAVED = Interval(0.02, float("-inf"), 0.05)


def point(value, optimizer="adamw", *, seeds=range(5), slope=0.0, noise=0.0, axis="width"):
    """A grid in which the difference of losses grows by `slope` with every doubling, with noise by seed and grid."""
    rng = np.random.default_rng(value)
    doublings = np.log2(value / 64)
    values = {seed: seed + slope * doublings + noise * rng.standard_normal() for seed in seeds}
    return Point(axis, value, optimizer, SAVED, dict.fromkeys(MEASURES, values))


def test_a_slope_is_what_a_doubling_adds_seed_by_seed():
    """Seeds differ by 1 each, which a slope by seed does not see; only seeds that all grids have count."""
    found = [point(64, slope=-0.25), point(128, slope=-0.25), point(256, slope=-0.25, seeds=range(2, 9))]
    (loss, *_) = slopes(found)
    assert (loss.measure, loss.values) == ("loss", (64, 128, 256))
    np.testing.assert_allclose(loss.by_seed, [-0.25] * 3)
    assert slopes(found[:1]) == []


def test_slopes_are_corrected_for_their_number():
    """Twice as many of them, by a second optimizer: the least p-value is twice as large."""
    one = [point(value, slope=0.1, noise=0.05) for value in (64, 128, 256)]
    two = one + [point(value, "muon", noise=0.05) for value in (64, 128, 256)]
    few, many = slope_lines(one), slope_lines(two)
    assert float(many[0]["p, Holm over 8"]) == pytest.approx(2 * float(few[0]["p, Holm over 4"]), rel=0.05)
    assert few[0]["a doubling adds"] == many[0]["a doubling adds"]


def test_the_saved_grids_are_all_compared_at_their_best():
    found = points()
    assert {(each.axis, each.value) for each in found} >= {("width", 64), ("width", 128)}
    assert {each.optimizer for each in found} == set(PAIRS)
    assert all(each.measures["standardized_gain"].keys() == each.measures["loss"].keys() for each in found)
    assert len(point_lines(found)) == len(found)


def test_the_figure_has_a_column_for_each_number_that_is_varied():
    found = [point(64), point(128), point(1024, axis="tokens a step"), point(4096, axis="tokens a step")]
    axes = figure(found).axes
    assert [axis.get_xlabel() for axis in axes] == ["tokens a step", "width"] * 2
    assert [axis.get_ylabel() for axis in axes[::2]] == [
        "smooth shrinkage less none, nats",
        "log2 of the best clip's gain",
    ]
