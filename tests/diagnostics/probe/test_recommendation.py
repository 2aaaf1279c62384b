"""Advice, from measurements made up for the purpose."""

import pytest
import torch

import entryclip as ec
from entryclip.diagnostics import tail_index
from entryclip.diagnostics.probe.recommendation import recommend
from entryclip.diagnostics.probe.standardized import DetectedSpike
from entryclip.noise import Cauchy, Contamination, Gaussian, StudentT, fit
from entryclip.quantiles import Histogram
from entryclip.theory.entry import threshold_smooth

G = torch.Generator().manual_seed(0)
NOISE = Contamination(0.05, 1.0, Cauchy(1.0)).sample((10**5,), G)


def advice(count, samples=31, *, noise=NOISE, place=None, tail=None, scale=2.0, raw_spikes=0, uneven=False, rank=64):
    spikes = [DetectedSpike(i, *(place or (i, 2 * i)), 0.9, 50.0) for i in range(count)]
    return recommend(
        spikes,
        samples,
        Histogram.of(noise),
        raw_spikes=raw_spikes,
        uneven=uneven,
        scale=scale,
        localized=None,
        tail=tail,
        fit=fit(noise),
        bound=0.1,
        rank=rank,
    )


@pytest.mark.parametrize(
    ("count", "verdict", "sure"),
    [(0, "no spikes", "sure"), (1, "rare spikes", "unsure"), (6, "rare spikes", "unsure"), (7, "spikes", "likely")],
)
def test_the_verdict_follows_the_share_of_spiked_samples(count, verdict, sure):
    """7 of 31 is the first count whose share is above 10 % with 95 % confidence."""
    found = advice(count)
    assert (found.verdict, found.sure) == (verdict, sure)
    assert found.clips == (verdict == "spikes")
    assert (found.clip is None) == (count == 0)


def test_in_uneven_rows_and_columns_the_clip_is_one_that_standardizes():
    """A quantile of raw entries would be one threshold for large and small rows; the words say why."""
    even, uneven = advice(20), advice(20, uneven=True)
    assert even.clip.rule == ec.Quantile(even.quantile)
    assert "auto()" not in even.reason
    assert uneven.clip == ec.auto()
    assert (uneven.quantile, uneven.threshold, uneven.theory) == (None, None, None)
    assert (uneven.verdict, uneven.sure, uneven.stage) == (even.verdict, even.sure, even.stage)
    assert uneven.gain == even.gain
    assert "rows and columns differ in scale, so that one threshold for all entries would touch" in uneven.reason
    assert "auto() divides by the scales first" in uneven.reason
    assert advice(2, uneven=True).clip == ec.auto()  # also as a precaution


def test_a_narrow_matrix_is_promised_no_gain():
    """`auto()` only bounds single entries of a matrix with a side below 32, so the gain of a clip is not its."""
    wide, narrow = advice(20, uneven=True), advice(20, uneven=True, rank=3)
    assert wide.gain > 1
    assert narrow.clip == ec.auto()
    assert narrow.gain is None
    assert "with a side of 3 it bounds the very largest entries and does no more" in narrow.reason


def test_many_large_entries_without_a_spike_are_named():
    """No entry dominates, so no clip is advised; the words say what "anomalous entries" is then about."""
    found = advice(0)
    assert (found.verdict, found.structure, found.clip) == ("no spikes", "anomalous entries", None)
    assert "many entries are too large for Gaussian ones" in found.reason
    assert "many entries" not in advice(0, noise=torch.randn(10**5, generator=G)).reason


def test_few_samples_are_never_sure():
    assert advice(0, 9).sure == "unsure"
    assert advice(0, 20).sure == "likely"
    assert advice(2, 5).sure == "unsure"


def test_the_same_entry_every_time_is_the_signal():
    found = advice(20, place=(4, 7))
    assert found.verdict == "one entry"
    assert found.clip is None
    assert "row 4 column 7" in str(found)


def test_thresholds_are_gradients():
    """The quantile of one sample's noise, and the theorem's least threshold, in the gradient's unit."""
    found = advice(20)
    assert str(found.clip) in ("smooth_shrinkage(q=0.99)", "smooth_shrinkage(q=0.995)")
    assert found.quantile == float(str(found.clip).partition("=")[2].rstrip(")"))
    assert found.threshold == pytest.approx(2 * float(ec.quantile_abs(NOISE, found.quantile)), rel=0.05)
    exact = threshold_smooth(Contamination(0.05, 2.0, Cauchy(2.0)), 0.1, 0.25 / 8)
    assert found.theory == pytest.approx(exact, rel=0.1)
    assert found.gain > 10


def test_no_theory_where_the_noise_is_not_the_theorems():
    assert advice(20, noise=Gaussian(1.0).sample((10**5,), G)).theory is None


@pytest.mark.parametrize(("nu", "stage"), [(1.0, "microbatch"), (3.0, "pre")])
def test_the_stage_follows_the_tail(nu, stage):
    """Below index 2 a mean over the batch does not tame it."""
    found = advice(20, tail=tail_index(StudentT(nu).sample((10**5,), G)))
    assert found.stage == stage
    assert ("lets them through" in found.reason) == (stage == "microbatch")


def test_the_words_say_what_the_noise_is():
    """Anomalous entries come first: where there are some, scales do not matter to the advice."""
    plain = Gaussian(1.0).sample((10**5,), G)
    assert advice(0, noise=plain).structure == "neither"
    assert advice(0, noise=plain, uneven=True).structure == "rows and columns"
    assert advice(0, noise=NOISE).structure == "anomalous entries"  # a clip would gain much, though nothing spikes
    assert advice(9, noise=plain, uneven=True).structure == "anomalous entries"


def test_entries_where_a_large_row_crosses_a_large_column_call_for_no_clip():
    found = advice(0, noise=Gaussian(1.0).sample((10**5,), G), raw_spikes=20, uneven=True)
    assert found.clip is None
    words = (
        "rows and columns differ in scale; one entry carries more than half of sigma_1 in none of 31 samples, and in 20"
    )
    assert words in str(found)


def test_it_reads_as_a_sentence():
    assert str(advice(0, noise=Gaussian(1.0).sample((10**5,), G))) == (
        "no clipping needed (sure): neither rows and columns of different scale nor anomalous entries; "
        "one entry carries more than half of sigma_1 in none of 31 samples"
    )
    assert str(advice(9)).startswith("smooth_shrinkage(q=0.9")
    assert "(likely): anomalous entries; one entry carries more than half of sigma_1 in 9 of 31 samples;" in str(
        advice(9)
    )
