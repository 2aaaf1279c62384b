"""The probe names the right layers, says what it cannot know, and leaves the model as it was."""

import copy
import random
import re

import numpy as np
import pytest
import torch
from memory import torch_peak
from processes import on_processes
from torch import nn

import entryclip as ec
from entryclip.diagnostics import probe
from entryclip.lab.lm.model.gpt import GPT, Config
from entryclip.lab.paper import synthetic_layers as known
from entryclip.lab.paper.synthetic_layers import Known, loss

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
    expected = ec.diagnostics.localization(E, G, k=(1, 2, 3))
    np.testing.assert_allclose(found.localization.ratio, expected.ratio, rtol=1e-3)
    np.testing.assert_allclose(found.localization.median, expected.median, rtol=1e-3)
    mean = gradients.mean(0)
    plain = ec.diagnostics.localization(gradients[b] - mean, mean, k=(1, 2, 3))
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


# ------------------------------------------------------------------------------------------ what can go wrong


def test_zero_gradients_and_frozen_layers():
    torch.manual_seed(0)
    model = GPT(Config.tiny())  # with a head of zeros, nothing else has a gradient yet
    model.blocks[1].mlp.requires_grad_(False)
    report = probe(model, sequences, tokens(12), ["lm_head*", "blocks.[01].mlp.c_fc*"], 2)
    silent = report["blocks.0.mlp.c_fc.weight"]
    assert silent.recommendation.verdict == "nothing to see"
    assert silent.recommendation.clip is None
    assert "zero in every sample" in silent.notes[0]
    assert report["lm_head.weight"].samples == 5
    assert report.left_out["blocks.1.mlp.c_fc.weight"] == "frozen: it needs no gradient"
    assert "nothing to see" in str(report)
    assert silent.row()["r_hat"] is None


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


# ------------------------------------------------------------------------------------------ real models


def tokens(count, length=24):
    g = torch.Generator().manual_seed(0)
    return [torch.randint(256, (length,), generator=g) for _ in range(count)]


def sequences(model, batch):
    return model(batch[:-1], batch[1:])


@pytest.fixture(scope="module")
def gpt():
    """A few steps away from its beginning, so that every matrix has a gradient."""
    torch.manual_seed(0)
    model = GPT(Config.tiny())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for batch in tokens(12):
        sequences(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def test_a_language_model(gpt):
    report = probe(gpt, sequences, tokens(20), directions=1)
    names = [matrix.name for matrix in report.matrices]
    assert "blocks.1.attn.qkv_w.v" in names
    assert not any("embed" in name or "lm_head" in name for name in names)
    assert report.left_out["lm_head.weight"] == "is called lm_head: ask for it by name"
    for found in report.matrices:
        assert found.samples == 9
        assert np.isfinite(found.localization.median).all()
    assert len(str(report).splitlines()) == len(names) + 1 + len(report.summary())
    found = probe(gpt, sequences, tokens(12), "blocks.3.attn.qkv_w.k")["blocks.3.attn.qkv_w.k"]
    assert found.localization.k == found.plain.k == (1, 2, 3, 4, 5, 6, 7, 8)
    assert found.localization.participation.shape == (8, 2)
    heads = probe(gpt, sequences, tokens(12), "blocks.1.attn.qkv_w.v.head*", 1)
    assert [(m.name, m.shape) for m in heads.matrices] == [
        (f"blocks.1.attn.qkv_w.v.head{i}", (16, 32)) for i in range(2)
    ]


def test_the_model_is_left_exactly_as_it_was():
    """Parameters, buffers, .grad, modes and every generator; with dropout and batch norm, which change on the way."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 9), nn.BatchNorm1d(9), nn.Dropout(0.5), nn.Linear(9, 4))
    model[3].eval()
    model[0].weight.grad = torch.full((9, 8), 7.0)
    grads = [p.grad for p in model.parameters()]
    before, modes = copy.deepcopy(model.state_dict()), [m.training for m in model.modules()]
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002
    batches = torch.utils.data.DataLoader(torch.randn(60, 8), batch_size=5, shuffle=True)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002

    def noisy(model, x):
        random.random()
        np.random.rand()  # noqa: NPY002
        model.train()
        return model(x).square().mean()

    probe(model, noisy, batches, directions=2)
    assert [p.grad for p in model.parameters()] == grads  # the very same tensors
    assert (model[0].weight.grad == 7).all()
    assert [m.training for m in model.modules()] == modes
    after = model.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert (np.random.get_state()[1] == states[2]).all()  # noqa: NPY002


def test_it_is_left_as_it_was_after_an_error_too():
    model = nn.Sequential(nn.Linear(8, 9), nn.BatchNorm1d(9), nn.Linear(9, 4))
    model[0].weight.grad = kept = torch.full((9, 8), 7.0)
    before = copy.deepcopy(model.state_dict())

    def fails(model, x):
        value = model(x).square().mean()
        if float(x[0, 0]) > 100:
            raise RuntimeError("out of data")
        return value

    batches = torch.randn(12, 5, 8)
    batches[11] = 200
    with pytest.raises(RuntimeError, match="out of data"):
        probe(model, fails, batches)
    assert model[0].weight.grad is kept
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())


def test_dropout_is_the_same_in_both_passes():
    """The noise of a sample must be the one whose centre was taken."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 12), nn.Dropout(0.5), nn.Linear(12, 4))
    seen = {i: [] for i in range(20)}

    def kept(model, number):
        value = model(torch.ones(1, 8)).square().mean()
        seen[number].append(value.item())
        return value

    probe(model, kept, range(20), directions=1)
    assert [len(values) for values in seen.values()] == [1, 2] * 9 + [1, 1]
    assert all(len(set(values)) == 1 for values in seen.values())
    assert len({values[0] for values in seen.values()}) > 10  # and it is not one and the same for all


class Parts(nn.Module):
    """Tied weights, a bare parameter, experts, a convolution and half precision."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 8)
        self.conv = nn.Conv1d(8, 8, 3, padding=1)
        self.experts = nn.Parameter(torch.randn(3, 8, 8) / 3)
        self.bare = nn.Parameter(torch.randn(8, 8) / 3)
        self.twice = nn.Linear(8, 8)
        self.again = self.twice
        self.low = nn.Linear(8, 8).bfloat16()
        self.head = nn.Linear(8, 30, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        y = self.conv(self.embed(x).T).T
        y = torch.tanh(torch.stack([y @ w for w in self.experts[:2]]).sum(0) @ self.bare)  # the third one sleeps
        y = self.again(torch.tanh(self.twice(y)))
        return nn.functional.cross_entropy(self.head(self.low(y.bfloat16()).float()), x.roll(-1))


def test_every_kind_of_weight():
    torch.manual_seed(0)
    model, g = Parts(), torch.Generator().manual_seed(1)
    batches = [torch.randint(30, (16,), generator=g) for _ in range(16)]
    report = probe(model, lambda model, x: model(x), batches, "*", 2)
    shapes = {matrix.name: matrix.shape for matrix in report.matrices}
    assert shapes == {
        "embed.weight": (30, 8),  # once, though the head is tied to it
        "conv.weight": (8, 24),  # one matrix (out, rest), as the optimizers take it
        "experts.0": (8, 8),
        "experts.1": (8, 8),
        "experts.2": (8, 8),
        "bare": (8, 8),
        "twice.weight": (8, 8),
        "low.weight": (8, 8),
    }
    quiet = [m.name for m in report.matrices if m.recommendation.verdict == "nothing to see"]
    assert quiet == ["experts.2"]
    expected = torch.stack([torch.autograd.grad(model(x), model.twice.weight)[0] for x in batches])
    centre = torch.stack([expected[[1, 3, 5, 7, 9, 11, 13][i::3]].mean(0) for i in range(3)]).median(0).values
    sigma = torch.linalg.svdvals(expected[[1, 3, 5, 7, 9, 11, 13]] - centre)[:, 0]
    np.testing.assert_allclose(report["twice.weight"].correlation.sigma, sigma, rtol=1e-4)


def test_a_compiled_model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 4))
    batches = torch.randn(12, 5, 8)
    plain = probe(model, lambda model, x: model(x).square().mean(), batches, directions=1)
    compiled = probe(
        torch.compile(model, backend="aot_eager"), lambda model, x: model(x).square().mean(), batches, directions=1
    )
    assert [m.name for m in compiled.matrices] == [m.name for m in plain.matrices] == ["0.weight", "2.weight"]
    for a, b in zip(plain.matrices, compiled.matrices, strict=True):
        np.testing.assert_allclose(a.localization.ratio, b.localization.ratio, rtol=1e-2)


def sharded(rank, folder):
    """With FSDP2 on two processes: the gradients are DTensors, and the report is that of the plain model."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    def value(model, x):
        return model(x).square().mean()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(9, 13), nn.Tanh(), nn.Linear(13, 5))
    batches = torch.randn(12, 4, 9, generator=torch.Generator().manual_seed(1))
    expected = probe(model, value, batches, directions=2)
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    found = probe(model, value, batches, directions=2)
    for a, b in zip(expected.matrices, found.matrices, strict=True):
        assert a.name == b.name
        np.testing.assert_allclose(a.localization.ratio, b.localization.ratio, rtol=1e-2)
        np.testing.assert_allclose(a.correlation.sigma, b.correlation.sigma, rtol=1e-4)


def test_a_sharded_model(tmp_path):
    on_processes(2, sharded, tmp_path, str(tmp_path))


def test_memory_is_seven_gradients():
    """Five block means, a gradient, and what is worked with; never samples x parameters."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(320, 320, bias=False) for _ in range(5)))
    size = 4 * 5 * 320 * 320
    batches = torch.randn(10, 1, 320)

    def run():
        probe(model, lambda model, x: model(x).square().mean(), batches, directions=1)

    assert torch_peak(run) <= 7 * size  # numpy has small things: nulls, histograms, a matrix at a time
