"""The probe on layers whose noise is known: it names the right ones, and says what it cannot measure."""

import re
from functools import partial

import numpy as np
import pytest
import torch

import entryclip as ec
from entryclip.diagnostics import probe
from entryclip.lab.paper import synthetic_layers as known
from entryclip.lab.paper.synthetic_layers import SyntheticLayers as Known
from entryclip.lab.paper.synthetic_layers import loss

CLEAN = ("gaussian", "aligned", "multiplicative", "entrywise", "low_rank")


def test_it_names_the_contaminated_layers_and_no_others():
    """At 64 samples at least 95 % of the contaminated matrices and at most 5 % of the clean ones.

    Of 20 and 25 it may miss one and flag one. One entry carries half of sigma_1 in more than 3/4 of the samples of the
    contaminated, and in none of hundreds of the clean; 7 of 31 are needed.
    """
    shapes = ((32, 24), (24, 40), (40, 40), (64, 48))
    kinds = {f"cauchy{i}": (known.cauchy, shapes[i % 4]) for i in range(20)}
    kinds |= {f"{name}{i}": (getattr(known, name), shapes[i % 4]) for i in range(5) for name in CLEAN}
    report = probe(Known(kinds), loss, range(64), directions=1)
    named = [name.removeprefix("weights.") for name in report.flagged]
    assert sum(name.startswith("cauchy") for name in named) >= 19
    assert sum(not name.startswith("cauchy") for name in named) <= 1
    for i in range(20):
        found = report[f"weights.cauchy{i}"]
        assert found.recommendation.clip is not None
        assert 0.9 <= found.recommendation.quantile < 1
        assert found.recommendation.gain > 2
        assert found.correlation.rho > 0.8
    assert all(report[f"weights.gaussian{i}"].recommendation.clip is None for i in range(5))
    assert np.median([report[f"weights.aligned{i}"].localization.median[0] for i in range(5)]) < 0.1


def uneven(G, g):
    """Gaussian noise whose rows and columns have log-normal scales of SD 1, the same in every sample."""
    fixed = torch.Generator().manual_seed(5)
    rows, columns = (torch.randn(side, generator=fixed).exp() for side in G.shape)
    return rows[:, None] * torch.randn(G.shape, generator=g) * columns


def test_rows_and_columns_of_different_scale_are_not_taken_for_spikes():
    """Raw, a clip would seem to gain much; standardised, the noise is plain Gaussian."""
    layers = {"uneven": (uneven, (64, 48)), "plain": (known.gaussian, (64, 48)), "spiky": (known.cauchy, (64, 48))}
    report = probe(Known(layers), loss, range(64), directions=1)
    found = report["weights.uneven"]
    assert found.gain.factor > 2
    inside = found.standardized
    assert inside.gain.factor < 1.05
    low, high = inside.localization.band()[0]
    assert low < inside.localization.median[0] < high
    assert not inside.fit.contaminated
    assert inside.variance == pytest.approx((1, 1, np.pi**2 / 8), rel=0.5)
    assert found.recommendation.verdict == "no spikes"
    assert found.recommendation.structure == "rows and columns"
    assert report["weights.plain"].recommendation.structure == "neither"
    assert report["weights.spiky"].recommendation.structure == "anomalous entries"
    assert report["weights.spiky"].standardized.gain.factor > 5
    assert (
        report.summary()[1] == "the noise: rows and columns differ in scale in 1, anomalous entries in 1, neither in 1"
    )


def planted(G, g, *, fixed=True, sd=1.0):
    """Noise without a signal in rows and columns of log-normal scale, with one entry of 60 scales somewhere."""
    law = torch.Generator().manual_seed(5) if fixed else g
    rows, columns = (torch.randn(side, generator=law).mul(sd).exp() for side in G.shape)
    noise = torch.randn(G.shape, generator=g)
    noise.view(-1)[torch.randint(G.numel(), (1,), generator=g)] = 60.0
    return rows[:, None] * noise * columns - G


def test_the_advice_for_uneven_rows_and_columns_touches_the_spikes_and_nothing_else():
    """The best quantile of the standardised noise misses most of them as a quantile of raw entries."""
    model = Known({"w": (planted, (48, 64))})
    found = probe(model, loss, range(64), directions=1)["weights.w"]
    assert found.recommendation.structure == "anomalous entries"
    samples = [gradient(model, i) for i in range(64)]
    law = torch.Generator().manual_seed(5)
    scales = torch.randn(48, generator=law).exp()[:, None] * torch.randn(64, generator=law).exp()
    spikes = [(x / scales).abs() > 30 for x in samples]
    assert [int(each.sum()) for each in spikes] == [1] * 64
    clip = found.recommendation.clip
    state = clip.init(samples[0])
    for x, spike in zip(samples, spikes, strict=True):
        y, state = clip.update(x, state)
        assert torch.equal(y != x, spike)
    raw = ec.hard(found.standardized.gain.quantile)
    missed = sum(bool((raw(x) == x)[spike]) for x, spike in zip(samples, spikes, strict=True))
    assert missed > 30


def test_scales_that_change_from_sample_to_sample_are_seen_too():
    """Their mean over the samples is even, but no sample is (the centre, a mean of others, makes it more so)."""
    layers = {"spiky": partial(planted, fixed=False, sd=0.5), "even": known.cauchy}
    model = Known({name: (kind, (48, 64)) for name, kind in layers.items()})
    report = probe(model, loss, range(64), directions=1)
    found = report["weights.spiky"]
    assert min(found.standardized.in_samples[:2]) > 0.1
    assert sum(found.standardized.variance[:2]) < 0.04
    assert found.standardized.uneven
    assert found.recommendation.clip == ec.auto()
    assert not report["weights.even"].standardized.uneven
    assert report["weights.even"].recommendation.quantile is not None


def test_standardized_numbers_are_those_of_the_instruments():
    """Streamed from the mean scales of the samples before, or each sample from medians: nearly the same."""
    model = Known({"w": (uneven, (40, 50))})
    found = probe(model, loss, range(40), directions=1)["weights.w"].standardized
    gradients = torch.stack([gradient(model, i) for i in range(1, 38, 2)])
    centre = torch.stack([gradients[i::3].mean(0) for i in range(3)]).median(0).values
    expected = ec.diagnostics.scales(gradients - centre)
    np.testing.assert_allclose(found.rows, expected.rows.mean(0), rtol=0.01)
    np.testing.assert_allclose(found.columns, expected.columns.mean(0), rtol=0.01)
    assert found.fit.sigma.value == pytest.approx(ec.noise.fit(expected.standardized).sigma.value, rel=0.01)


def test_heavy_low_rank_noise_is_neither():
    """No single entry drives it: at most an unsure advice, just in case."""
    kinds = {f"h{i}": (known.heavy_low_rank, (64, 48)) for i in range(4)}
    report = probe(Known(kinds), loss, range(64), directions=1)
    assert {m.recommendation.verdict for m in report.matrices} <= {"no spikes", "rare spikes"}
    assert all(m.recommendation.sure == "unsure" for m in report.matrices if m.recommendation.clip)


def spiky(G, g):
    """Gaussian, with one entry of 40 somewhere."""
    noise = torch.randn(G.shape, generator=g)
    noise.view(-1)[torch.randint(G.numel(), (1,), generator=g)] = 40.0
    return noise


def captured(spike_at, noise):
    """As `loss`, with a huge spike in the gradients of one sample."""

    def spiked(model, number):
        total = loss(model, number)
        return total + 1e6 * sum(w[3, 5] for w in model.weights.values()) if number == spike_at else total

    return Known({"w": (noise, (40, 30))}), spiked


def test_a_spike_captures_a_plain_mean_and_not_ours():
    """One sample of the first half decides the plain mean's directions, and R-hat sees that one entry alone: 1.

    With a plain mean in place of the median of means our R-hat would be 1 as well, and this test fails.
    """
    model, spiked = captured(4, spiky)
    report = probe(model, spiked, range(64), directions=2)
    found = report["weights.w"]
    assert found.localization.median[0] > found.localization.band()[0, 1]
    assert found.recommendation.sure == "sure"
    assert found.plain.median[0] == pytest.approx(1, abs=0.01)
    assert found.plain.participation[0] == pytest.approx([1, 1], abs=0.01)


def test_a_spike_in_one_sample_does_not_spike_the_others():
    """Centred on a plain mean, every other sample would have a 31st of it in its noise."""
    model, spiked = captured(5, known.gaussian)
    found = probe(model, spiked, range(64), directions=1)["weights.w"]
    assert [(spike.sample, spike.row, spike.column) for spike in found.spikes] == [(5, 3, 5)]
    assert found.recommendation.verdict == "rare spikes"
    assert found.recommendation.sure == "unsure"


def test_an_entry_of_the_signal_is_not_taken_for_noise():
    def always(G, g):
        noise = torch.randn(G.shape, generator=g)
        noise[7, 2] = 200 * torch.randn((), generator=g)
        return noise

    advice = probe(Known({"w": (always, (40, 30))}), loss, range(64), directions=1)["weights.w"].recommendation
    assert advice.verdict == "one entry"
    assert advice.clip is None
    assert "row 7 column 2" in advice.reason


def test_numbers_are_those_of_the_instruments():
    """Streamed or all at once, and with the noise that is known here: it is the same."""
    model = Known({"w": (known.cauchy, (30, 20))})
    report = probe(model, loss, range(40), directions=3)
    found = report["weights.w"]
    gradients = torch.stack([gradient(model, i) for i in range(40)])
    b = list(range(1, 38, 2))
    a = [i for i in range(40) if i not in b]
    assert found.samples == len(b) == 19  # an odd number
    G = torch.stack([gradients[a[i::5]].mean(0) for i in range(5)]).median(0).values
    centre = torch.stack([gradients[b[i::3]].mean(0) for i in range(3)]).median(0).values
    E = gradients[b] - centre
    expected = ec.diagnostics.localization(E, G, k=(1, 2, 3), scales=None)
    np.testing.assert_allclose(found.localization.ratio, expected.ratio, rtol=1e-3)
    np.testing.assert_allclose(found.localization.median, expected.median, rtol=1e-3)
    mean = gradients.mean(0)
    plain = ec.diagnostics.localization(gradients[b] - mean, mean, k=(1, 2, 3), scales=None)
    np.testing.assert_allclose(found.plain.ratio, plain.ratio, rtol=1e-3)
    assert found.correlation.rho == pytest.approx(ec.diagnostics.max_entry_correlation(E).rho, abs=1e-6)
    assert found.premise == np.mean(ec.diagnostics.expansion(G, E).holds)
    scale = E.abs().flatten(1).median(1).values / 0.6745
    assert found.scale.value == pytest.approx(float(scale.median()), rel=0.02)
    fit = ec.noise.fit(E / scale[:, None, None])
    assert found.fit.alpha_gamma.value == pytest.approx(fit.alpha_gamma.value, rel=0.05)
    signal = float((gradients[a].mean(0) * gradients[b].mean(0)).sum())
    trace = float(E.square().sum()) / (len(b) - 1)
    assert found.noise_scale is None if signal <= 0 else found.noise_scale == pytest.approx(trace / signal, rel=1e-3)


def gradient(model, number):
    (found,) = torch.autograd.grad(loss(model, number), list(model.parameters()))
    return found


def test_noise_scale_of_known_noise():
    """tr(Cov) = 1200 for Gaussian noise at 40 x 30; |G|^2 is known. Within 5 standard errors."""
    model = Known({"w": (known.gaussian, (40, 30))})
    found = probe(model, loss, range(100), directions=1)["weights.w"]
    truth = 1200 / float(model.signals["w"].square().sum())
    assert found.noise_scale == pytest.approx(truth, rel=0.1)
    assert found.fit.contaminated is False
    assert found.fit.sigma.value * found.scale.value == pytest.approx(1, rel=0.02)
    assert abs(found.balance.value) < 0.1


def test_balance_sees_asymmetric_noise():
    """Spikes that all point with the gradient: a clip would be biased, and the number says so."""

    def skewed(G, g):
        hit = torch.rand(G.shape, generator=g) < 0.03
        return torch.randn(G.shape, generator=g) + 20 * hit * G.sign()

    found = probe(Known({"w": (skewed, (40, 30))}), loss, range(64), directions=1)["weights.w"]
    assert found.balance.low > 0.2


def test_a_gradient_that_is_seldom_there():
    """An expert that few samples reach: the median of means is zero, the noise is not."""

    def seldom(G, g):
        reached = float(torch.rand((), generator=g)) < 0.15
        return torch.randn(G.shape, generator=g) if reached else -G

    def never(G, g):
        return torch.zeros(G.shape)

    report = probe(Known({"seldom": (seldom, (40, 30)), "never": (never, (40, 30))}), loss, range(64), directions=2)
    found = report["weights.seldom"]
    assert found.localization is None
    assert found.plain is not None
    assert found.recommendation.verdict == "no spikes"
    assert any("the median of the block means is zero" in note for note in found.notes)
    (why,) = report["weights.never"].notes
    assert why == "only 0 samples have a gradient that differs from the others': 5 are needed"


def test_bad_samples_are_counted_named_and_left_out():
    model = Known({"w": (known.cauchy, (30, 20)), "other": (known.gaussian, (30, 20))})

    def sometimes(model, number):
        factor = {3: float("nan"), 6: float("inf")}.get(number, 1.0)
        return loss(model, number) + (model.weights["w"][0, 0] * (factor if factor != 1 else 0.0))

    report = probe(model, sometimes, range(40), directions=2)
    assert report.samples == 38
    assert [re.match(r"sample (\d+): ", each)[1] for each in report.bad] == ["6", "3"]
    assert "weights.w" in report.bad[0] or "loss" in report.bad[0]
    without = probe(model, loss, [i for i in range(40) if i not in (3, 6)], directions=2)
    assert all(np.isfinite(report["weights.w"].localization.ratio).ravel())
    assert report.flagged == without.flagged == ("weights.w",)
    assert "left out: sample 3" in str(report)


def test_all_samples_bad_is_an_error_with_words():
    model = Known({"w": (known.gaussian, (30, 20))})
    with pytest.raises(
        ValueError, match=r"0 of 11 samples .* finite gradients, 5 are needed \(sample 0: the loss is nan"
    ):
        probe(model, lambda model, i: loss(model, i) * float("nan"), range(20))


@pytest.mark.parametrize("count", [0, 1, 9])
def test_too_few_batches_is_an_error_with_words(count):
    model = Known({"w": (known.gaussian, (30, 20))})
    with pytest.raises(ValueError, match=f"at least 10 batches, .* got {count}: give more of them, or split a large"):
        probe(model, loss, range(count))


def test_batches_that_run_out_and_batches_without_end():
    model = Known({"w": (known.gaussian, (30, 20))})
    report = probe(model, loss, iter(range(21)), directions=1)
    assert report.samples == 21
    assert report.notes == ("the batches ran out after 21 of 64",)

    def forever():
        i = 0
        while True:
            yield i
            i += 1

    assert probe(model, loss, forever(), directions=1, samples=20).samples == 20


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"directions": 0}, "directions must be a whole number >= 1, got 0"),
        ({"samples": 3}, "samples must be a whole number >= 10, got 3"),
        ({"where": "nope"}, r"where matches no matrix, got \['nope'\]: there are 1, such as weights.w"),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(ValueError, match=words):
        probe(Known({"w": (known.gaussian, (30, 20))}), loss, range(20), **options)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda model, i: 3.0, "got float"),
        (lambda model, i: torch.zeros(()), "without a graph"),
        (lambda model, i: model.weights["w"].sum(0), r"shape \(20,\)"),
    ],
)
def test_a_loss_that_is_none(wrong, words):
    with pytest.raises(TypeError, match=words):
        probe(Known({"w": (known.gaussian, (30, 20))}), wrong, range(20))
