"""R-hat's null for noise whose rows and columns differ in scale: calibrated, and as powerful as the paper's."""

import numpy as np
import pytest
import torch
from scipy import stats

import entryclip as ec
from entryclip.diagnostics.localization import from_projections
from entryclip.diagnostics.null import gaussian_null
from entryclip.diagnostics.pooled_scales import pooled_scales
from entryclip.diagnostics.probe.standardized import StandardizedStatistics
from entryclip.noise import Cauchy, Contamination, Gaussian

# Measured; docs/diagnostics.md shows them.
LEVELS = {0.0: (0.0475, 0.0085), 0.5: (0.057, 0.01025), 1.0: (0.047, 0.01075)}  # at 5 % and 1 %, by SD of log-scales
POWER = {  # by the share of Cauchy entries: with estimated scales, with equal ones
    **{0.0: (0.06, 0.055), 0.01: (0.71, 0.705), 0.05: (0.955, 0.96)},
    **{0.1: (0.965, 0.96), 0.5: (0.98, 0.985), 1.0: (0.955, 0.96)},
}


def unit(x):
    return x / np.linalg.norm(x)


def signal(m, n, rng):
    return 30 * np.outer(unit(rng.standard_normal(m)), unit(rng.standard_normal(n))) + rng.standard_normal((m, n)) / 10


def lognormal(side, sd, rng):
    return np.exp(sd * rng.standard_normal(side))


def test_the_identity_behind_it():
    """R(s o Z o t; u, v) = R(Z; u o s, v o t), and its law is that of the reweighted directions."""
    rng = np.random.default_rng(0)
    u, v, s, t = unit(rng.standard_normal(9)), unit(rng.standard_normal(7)), rng.random(9), rng.random(7)
    z = rng.standard_normal((9, 7))
    raw, reweighted = u[:, None] * (s[:, None] * z * t) * v, (u * s)[:, None] * z * (v * t)
    assert np.abs(raw).max() / abs(raw.sum()) == pytest.approx(np.abs(reweighted).max() / abs(reweighted.sum()))
    found = from_projections([1], np.ones((1, 1)), np.ones((1, 1)), u[:, None], v[:, None], scales=(s, t))
    assert found.nulls[0].median == gaussian_null(unit(u * s), unit(v * t)).median


@pytest.mark.parametrize("sd", [0.0, 0.5, 1.0])
def test_p_values_are_uniform_with_scales_pooled_over_the_draws(sd):
    """KS test at 10^4 draws, level 1e-3; the null of equal scales is rejected where they differ."""
    rng = np.random.default_rng(7)
    G, rows, columns = signal(16, 24, rng), lognormal(16, sd, rng), lognormal(24, sd, rng)
    E = rows[:, None] * rng.standard_normal((10_000, 16, 24)) * columns
    found = ec.diagnostics.localization(E, G)
    assert stats.kstest(found.p_spike, "uniform").pvalue > 1e-3
    assert stats.kstest(found.p_aligned, "uniform").pvalue > 1e-3
    given = ec.diagnostics.localization(E[0], G, scales=(rows, columns))
    np.testing.assert_allclose(given.nulls[0].median, found.nulls[0].median, rtol=0.05)
    equal = ec.diagnostics.localization(E[:3000], G, scales=None)
    assert (stats.kstest(equal.p_spike, "uniform").pvalue < 1e-6) == (sd > 0)


def spike_p_values(sd, count, seed=8):
    """P-values of as many Gaussian matrices, 24 x 32, with directions and scales of their own: from each alone."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(count):
        u, v = unit(rng.standard_normal(24)), unit(rng.standard_normal(32))
        E = lognormal(24, sd, rng)[:, None] * rng.standard_normal((24, 32)) * lognormal(32, sd, rng)
        terms = u[:, None] * E * v
        r, r_max = np.array([[terms.sum() ** 2]]), np.array([[np.abs(terms).max() ** 2]])
        pair = pooled_scales(E)
        found.append(from_projections([1], r, r_max, u[:, None], v[:, None], scales=pair, draws=2000).p_spike.item())
    return np.array(found)


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("sd", [0.0, 0.5, 1.0])
def test_p_values_are_uniform_with_scales_from_the_one_matrix_itself(sd, count):
    """KS test, level 1e-3."""
    assert stats.kstest(spike_p_values(sd, count), "uniform").pvalue > 1e-3


@pytest.mark.exhaustive
@pytest.mark.parametrize("sd", LEVELS)
def test_the_levels_are_those_of_the_documentation(sd):
    """docs/diagnostics.md: the share of 4000 Gaussian matrices with p below 5 % and 1 %; the same draws in each run."""
    found = spike_p_values(sd, 4000)
    shares = [float((found <= level).mean()) for level in (0.05, 0.01)]
    assert shares == pytest.approx(LEVELS[sd], abs=0.001)


def detections(law, tests):
    """How many of as many tests find this noise, by the null of estimated scales and by that of equal ones.

    A test is the median of 15 draws, 40 x 32, at the level 5 %, one-sided.
    """
    rng, generator = np.random.default_rng(3), torch.Generator().manual_seed(4)
    hits = {"estimated": 0, "equal": 0}
    for _ in range(tests):
        G, E = signal(40, 32, rng), law.sample((15, 40, 32), generator)
        for name, options in (("estimated", {}), ("equal", {"scales": None})):
            found = ec.diagnostics.localization(E, G, **options)
            hits[name] += bool(found.median[0] > found.band(0.9)[0, 1])
    return hits


def law(alpha):
    mixed = Contamination(alpha, 1.0, Cauchy(3.0)) if alpha < 1 else Cauchy(3.0)
    return mixed if alpha > 0 else Gaussian(1.0)


@pytest.mark.parametrize("alpha", [0.01, 0.1, 0.5, 1.0])
def test_contaminated_noise_is_found_as_often_as_by_the_null_of_equal_scales(alpha):
    """At the same level, in 30 tests: at most one is lost."""
    hits = detections(law(alpha), 30)
    assert hits["estimated"] >= hits["equal"] - 1
    assert hits["equal"] > 3  # of 30, 1.5 of them by chance


@pytest.mark.exhaustive
@pytest.mark.parametrize("alpha", POWER)
def test_the_power_is_that_of_the_documentation(alpha):
    """docs/diagnostics.md: the share of 200 tests, at alpha = 0 of false alarms; the same draws in each run."""
    hits = detections(law(alpha), 200)
    assert (hits["estimated"] / 200, hits["equal"] / 200) == pytest.approx(POWER[alpha], abs=0.0075)


def test_noise_is_called_what_it_is():
    rng = np.random.default_rng(1)
    G, E = signal(96, 64, rng), rng.standard_normal((31, 96, 64))
    uneven = lognormal(96, 0.7, rng)[:, None] * E * lognormal(64, 0.7, rng)
    assert str(ec.diagnostics.localization(E, G)).endswith("like Gaussian noise")
    words = str(ec.diagnostics.localization(uneven, G))
    assert words.endswith("like Gaussian noise with rows and columns of different scale")
    assert str(ec.diagnostics.localization(uneven, G, scales=None)).endswith("single entries stand out")
    u, _, vt = np.linalg.svd(G)
    aligned = 500 * rng.standard_normal((31, 1, 1)) * np.outer(u[:, 0], vt[0])
    assert str(ec.diagnostics.localization(E + aligned, G)).endswith("aligned with G")
    assert str(ec.diagnostics.localization(uneven + 10 * aligned, G)).endswith("aligned with G")
    E[:, np.abs(u[:, 0]).argmax(), np.abs(vt[0]).argmax()] = 500.0
    assert str(ec.diagnostics.localization(E, G)).endswith("single entries stand out")


def arrays_in(held):
    """The sizes of all arrays that an object holds, however deep."""
    if isinstance(held, np.ndarray | torch.Tensor):
        return [held.size if isinstance(held, np.ndarray) else held.numel()]
    parts = held if isinstance(held, list | tuple) else list(getattr(held, "__dict__", {}).values())
    return [size for part in parts for size in arrays_in(part)]


def test_at_most_two_running_vectors_a_matrix():
    """Whatever the number of samples: one of rows and one of columns. The rest does not grow with the matrix."""
    statistics, g = StandardizedStatistics(), torch.Generator().manual_seed(0)
    for sample in range(30):
        statistics.add_(sample, torch.randn(70, 50, generator=g))
        assert sorted(arrays_in(statistics.pooled)) == [50, 70]
    marginal, statistics.marginal = statistics.marginal, None
    assert sorted(arrays_in(statistics)) == [50, 70]
    assert sum(arrays_in(marginal)) < 2**15 + 0.02 * 30 * 70 * 50  # a histogram, and the largest entries, bounded too


def test_equal_scales_are_shrunk_to_equal_ones():
    """The spread that is left is a small part of that of the estimates, sqrt(.6 / 64) = .1."""
    rng = np.random.default_rng(0)
    spreads = [np.log(pooled_scales(rng.standard_normal((64, 64)))[0]).std() for _ in range(20)]
    assert np.median(spreads) < 0.03


def test_draws_of_another_size_and_rows_without_noise():
    rng = np.random.default_rng(0)
    E = rng.standard_normal((9, 40, 50)) * np.geomspace(1, 10, 50)
    E[:, 5] = 0
    rows, columns = pooled_scales(E)
    assert rows[5] == 0
    sizes = np.geomspace(1e-30, 1e30, 9)[:, None, None]
    np.testing.assert_allclose(pooled_scales(sizes * E)[1], columns, rtol=1e-6)
    assert columns[-1] / columns[0] == pytest.approx(10, rel=0.1)


def test_a_lone_entry_has_no_scale():
    """There is nothing to measure it by: the null is that of equal scales."""
    E = np.zeros((3, 20, 30))
    E[:, 4, 5] = 1.0
    assert pooled_scales(E) is None


@pytest.mark.parametrize(
    ("scales", "words"),
    [
        ((np.ones(4), np.ones(3)), r"those of rows and of columns, \(3,\) and \(4,\), got \(4,\) and \(3,\)"),
        ((np.array([1.0, -1.0, 1.0]), np.ones(4)), "finite, not negative and not all 0, got -1.0 to 1.0"),
        ((np.ones(3), np.zeros(4)), "not all 0, got 0.0 to 0.0"),
    ],
)
def test_bad_scales(scales, words):
    with pytest.raises(ValueError, match=words):
        ec.diagnostics.localization(np.ones((3, 4)), signal(3, 4, np.random.default_rng(0)), scales=scales)


def test_scales_are_given_as_they_are_found():
    """A pair of arrays, tensors or lists, or what `diagnostics.scales` returned."""
    rng = np.random.default_rng(2)
    G, E, rows, columns = signal(9, 7, rng), rng.standard_normal((9, 7)), rng.random(9) + 0.1, rng.random(7) + 0.1
    expected = ec.diagnostics.localization(E, G, scales=(rows, columns)).normalized
    tensors = torch.from_numpy(rows), torch.from_numpy(columns)
    for pair in ([rows.tolist(), columns.tolist()], (tuple(rows), tuple(columns)), tensors, lambda E: tensors):
        np.testing.assert_allclose(ec.diagnostics.localization(E, G, scales=pair).normalized, expected)
    found = ec.diagnostics.scales(E)
    by_object, by_pair = (
        ec.diagnostics.localization(E, G, scales=each).normalized for each in (found, (found.rows, found.columns))
    )
    assert by_object == by_pair
    several = ec.diagnostics.localization(E, G, k=np.array([1, 2]), scales=found).normalized
    assert several[0] == by_pair


@pytest.mark.parametrize("scales", ["auto", 1.0, np.ones(9), [np.ones(9)]])
def test_scales_of_another_kind_are_refused(scales):
    rng = np.random.default_rng(2)
    with pytest.raises(TypeError, match="scales must be a pair of the scales of 9 rows and of 7 columns"):
        ec.diagnostics.localization(rng.standard_normal((9, 7)), signal(9, 7, rng), scales=scales)
    with pytest.raises(TypeError, match=r"k must be a whole number >= 1 or several of them, got 1\.0"):
        ec.diagnostics.localization(rng.standard_normal((9, 7)), signal(9, 7, rng), k=1.0)
