import functools
import math
import shutil

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.nn.utils import clip_grad_norm_

import entryclip as ec
from entryclip.lab.lm import GPT, Config
from entryclip.lab.lm.data.batches import Batches
from entryclip.lab.lm.data.shards import Tokens
from entryclip.lab.lm.train.divergence import Diverged
from entryclip.lab.lm.train.schedule import lr_factor
from entryclip.lab.lm.train.settings import Settings
from entryclip.lab.lm.train.trainer import Trainer
from entryclip.lab.lm.train.training_methods import make_optimizer


def settings(**changes):
    return Settings.quick(**{"steps": 8, "sequences": 4, "length": 32, "eval_tokens": 256, "lr": 0.02, **changes})


def plain_run(shards, wanted, steps):
    """Train by a plain loop; return the losses of the first steps and the model."""
    model = GPT(Config.tiny(257, 256), torch.Generator().manual_seed(wanted.seed))
    optimizer = make_optimizer(model, wanted.method, lr=wanted.lr, other_lr=wanted.other_lr, fused=True)
    rates = [group["lr"] for group in optimizer.param_groups]
    tokens = Tokens.open(shards, "train", vocabulary=257)
    losses = []
    for step, (x, y) in zip(range(steps), Batches(tokens, sequences=4, length=32, seed=wanted.seed), strict=False):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * lr_factor("linear", step, wanted.steps)
        loss = model(x, y, window=model.config.window_blocks(step / wanted.steps))
        loss.backward()
        if wanted.method == "adamw-norm":
            clip_grad_norm_(model.parameters(), wanted.level)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, model


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "post-smooth"},
        {"method": "pre-smooth"},
        {"method": "spectra"},
        {"method": "adamw-norm", "level": 0.1},
    ],
    ids=lambda changes: changes["method"],
)
def test_a_run_is_what_a_plain_loop_gives(shards, changes):
    wanted = settings(**changes)
    expected, model = plain_run(shards, wanted, 4)
    trainer = Trainer(wanted, shards)
    assert [trainer.step() for _ in range(4)] == expected
    for a, b in zip(trainer.model.parameters(), model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert trainer.tokens == 4 * 4 * 32


def test_it_starts_at_the_logarithm_of_the_vocabulary_and_learns(shards):
    trainer = Trainer(settings(steps=30), shards)
    first = trainer.evaluate()
    assert first == pytest.approx(math.log(384), abs=1e-4)
    for _ in range(30):
        trainer.step()
    assert trainer.evaluate() < first - 1
    assert 0 < trainer.optimizer_seconds < trainer.seconds


def test_microbatches_give_the_same_steps(shards):
    whole, pieces = Trainer(settings(lr=0.002), shards), Trainer(settings(lr=0.002, accumulate=4), shards)
    for _ in range(8):
        assert pieces.step() == pytest.approx(whole.step(), abs=1e-4)


def test_clipped_microbatches_are_the_mean_of_clipped_gradients(shards):
    trainer = Trainer(settings(accumulate=2, clip_microbatches=0.9, method="muon"), shards)
    x, y = next(Batches(Tokens.open(shards, "train", vocabulary=257), sequences=4, length=32, seed=1))
    for p in trainer.model.parameters():  # so that all gradients are there: the output maps begin at 0
        with torch.no_grad():
            p.add_(0.01 * torch.randn(p.shape, generator=torch.Generator().manual_seed(0)))
    parameters = dict(trainer.model.named_parameters())
    parts = []
    for piece in range(2):
        rows = slice(2 * piece, 2 * piece + 2)
        grads = torch.autograd.grad(trainer.model(x[rows], y[rows], window=1), list(parameters.values()))
        parts.append(dict(zip(parameters, grads, strict=True)))
    trainer._backward(x, y)
    for name, p in parameters.items():
        hidden = "blocks" in name and p.ndim > 1
        expected = sum(ec.smooth(0.9)(part[name]) if hidden else part[name] for part in parts) / 2
        torch.testing.assert_close(p.grad, expected, rtol=1e-4, atol=1e-7)


def test_an_evaluation_looks_all_over_what_is_held_out(shards):
    """Validation documents are in the order of their files, so the first ones are not typical."""
    spread, first = (Trainer(settings(eval_order=order), shards) for order in ("spread", "first"))
    held_out = Tokens.open(shards, "val", vocabulary=spread.config.vocabulary)
    seen = {order: trainer.data.evaluation_batches() for order, trainer in (("spread", spread), ("first", first))}
    tokens, _ = next(seen["first"])
    torch.testing.assert_close(tokens.flatten(), torch.from_numpy(held_out.read(0, 4 * 32).astype("int64")))
    assert max(seen["spread"]._order[:8]) > len(held_out) / 32 / 2
    assert spread.evaluate() == spread.evaluate()
    spread.step(), first.step()
    assert spread.evaluate() != first.evaluate()


@pytest.mark.parametrize("changes", [{}, {"sequences": 6}, {"sequences": 12, "accumulate": 4}], ids=str)
def test_an_evaluation_is_on_the_same_tokens_whatever_the_batch(shards, changes):
    trainer = Trainer(settings(eval_tokens=10 * 32, eval_order="first", **changes), shards)
    held_out = Tokens.open(shards, "val", vocabulary=257).read(0, 10 * 32 + 1)
    tokens, targets = (torch.from_numpy(part.astype("int64")).view(10, 32) for part in (held_out[:-1], held_out[1:]))
    trainer.step()
    assert trainer.evaluate() == pytest.approx(trainer.model(tokens, targets, window=trainer.window).item(), abs=1e-6)


def test_neither_an_evaluation_nor_the_search_for_nan_takes_more_at_once_than_a_microbatch(shards):
    trainer, seen = Trainer(settings(sequences=8, accumulate=4), shards), []
    trainer.model.register_forward_pre_hook(lambda module, inputs: seen.append(len(inputs[0])))
    trainer.evaluate()
    poison(trainer, "blocks.1.mlp.c_fc.weight", (12, 9), 3e38)
    with pytest.raises(Diverged):
        trainer.step()
    assert set(seen) == {2}


def test_shards_without_a_manifest_are_gpt2s(shards, tmp_path):
    for path in shards.glob("*.bin"):
        shutil.copy(path, tmp_path)
    trainer = Trainer(settings(), tmp_path)
    assert (trainer.config.vocabulary, trainer.config.separator) == (50257, 50256)
    trainer.step()


def test_only_the_named_matrices_are_clipped(shards):
    """Matrices are named as by the probe: a name of one of the three in qkv_w selects the whole parameter."""
    where = ("blocks.0.attn.qkv_w.v", "*.mlp.c_fc.weight")
    some, no, every = (
        Trainer(settings(**changes), shards)
        for changes in ({"method": "pre-smooth", "clip_where": where}, {"method": "muon"}, {"method": "pre-smooth"})
    )
    for trainer in (some, no, every):
        draw = torch.Generator().manual_seed(0)  # at its first step the model itself has none but the head's
        for p in trainer.model.parameters():
            p.grad = torch.randn(p.shape, generator=draw)
        trainer.optimizer.step()
    weights = [dict(trainer.model.named_parameters()) for trainer in (some, no, every)]
    for name, moved in weights[0].items():
        if name.startswith("blocks") and moved.ndim > 1:
            clipped = name == "blocks.0.attn.qkv_w" or name.endswith("c_fc.weight")
            assert torch.equal(moved, weights[2 if clipped else 1][name]), name
    assert not torch.equal(weights[1]["blocks.0.mlp.c_proj.weight"], weights[2]["blocks.0.mlp.c_proj.weight"])


def test_the_clip_begins_at_its_step(shards):
    late, never, always = (
        Trainer(settings(**changes), shards)
        for changes in ({"method": "post-smooth", "clip_from": 2}, {"method": "adamw"}, {"method": "post-smooth"})
    )
    losses = [[trainer.step() for _ in range(5)] for trainer in (late, never, always)]
    assert losses[0][:3] == losses[1][:3]
    assert losses[0][3] != losses[1][3]
    assert losses[0] != losses[2]


def test_the_speed_runs_momentum_rises(shards):
    trainer = Trainer(settings(method="snapshot", schedule="wsd", floor=0.1), shards)
    found = []
    for _ in range(3):
        trainer.step()
        found.append(trainer.optimizer.param_groups[0]["momentum"])
    assert found == pytest.approx([0.85 + 0.1 * step / 300 for step in range(3)])


def poison(trainer, name, place, value):
    with torch.no_grad():
        dict(trainer.model.named_parameters())[name][place] = value


@pytest.mark.parametrize(
    ("name", "place", "value", "words"),
    [
        ("blocks.1.mlp.c_fc.weight", (12, 9), math.nan, "parameter blocks.1.mlp.c_fc.weight is nan at row 12 column 9"),
        ("blocks.0.attn.qkv_w", (2, 3, 4), math.inf, "blocks.0.attn.qkv_w is inf at matrix 2 row 3 column 4"),
        ("blocks.1.mlp.c_fc.weight", (12, 9), 3e38, "the output of blocks.1.mlp.* is .* at"),
    ],
)
def test_nan_stops_with_the_step_the_layer_and_the_entry(shards, name, place, value, words):
    trainer = Trainer(settings(), shards)
    trainer.step()
    poison(trainer, name, place, value)
    before = [p.detach().clone() for p in trainer.model.parameters()]
    with pytest.raises(Diverged, match=f"training stopped at step 1: .*{words}"):
        trainer.step()
    for p, old in zip(trainer.model.parameters(), before, strict=True):
        torch.testing.assert_close(p, old, rtol=0, atol=0, equal_nan=True)  # the step was not taken


def test_a_gradient_that_is_not_finite_is_named(shards):
    trainer = Trainer(settings(method="adamw-norm"), shards)
    trainer.model.blocks[2].mlp.c_proj.weight.register_hook(lambda g: g.index_fill(0, torch.tensor(5), math.nan))
    with pytest.raises(Diverged, match=r"gradient of blocks\.2\.mlp\.c_proj\.weight is nan at row 5 column 0"):
        trainer.step()


@pytest.mark.parametrize("method", ["adamw-norm", "adamw-auto"])
def test_a_norm_that_overflows_is_no_divergence(shards, method):
    trainer = Trainer(settings(method=method, weight_decay=0.0), shards)
    trainer.model.blocks[2].mlp.c_proj.weight.register_hook(lambda g: g.index_fill(0, torch.tensor(5), 1e30))
    before = trainer.model.lm_head.weight.detach().clone()
    for _ in range(2):
        assert math.isfinite(trainer.step())
    stood_still = torch.equal(trainer.model.lm_head.weight, before)
    assert stood_still == (method == "adamw-norm")  # scaled by 1 / inf, as torch's clip_grad_norm_ does


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steps": 10**6}, r"too little data for 1,000,000 steps: .* tokens make .* steps of 128"),
        ({"eval_tokens": 10**7}, r"eval_tokens must be at most [\d,]+, all there is, got 10,000,000"),
        ({"sequences": 10**6}, "too little data: one batch takes"),
    ],
)
def test_too_little_data_is_said_before_training(shards, changes, words):
    with pytest.raises(ValueError, match=words):
        Trainer(settings(**changes), shards)


@pytest.mark.filterwarnings("ignore")  # torch's own, at the first compilation
def test_a_compiled_model_is_compiled_once_and_gives_the_same_run(shards, monkeypatch):
    counter = CompileCounter()  # traces as every backend does, and runs the graph as it is
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=counter))
    plain, compiled = Trainer(settings(lr=0.002), shards), Trainer(settings(lr=0.002, compile=True), shards)
    for _ in range(8):
        assert compiled.step() == pytest.approx(plain.step(), abs=1e-4)
    assert compiled.window > 4  # it grew, and was not compiled in
    assert counter.frame_count == 1


def test_bf16_stays_close(shards):
    plain, rough = Trainer(settings(), shards), Trainer(settings(precision="bf16"), shards)
    for _ in range(3):
        assert rough.step() == pytest.approx(plain.step(), rel=2e-2)
    assert all(p.dtype == torch.float32 for p in rough.model.parameters())
