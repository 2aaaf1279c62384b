"""The probe on real models: every kind of weight, compiled and sharded, and the model is left as it was."""

import copy
import random

import numpy as np
import pytest
import torch
from memory import torch_peak
from processes import on_processes
from torch import nn

from entryclip.diagnostics import probe
from entryclip.lab.lm import GPT, Config


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
