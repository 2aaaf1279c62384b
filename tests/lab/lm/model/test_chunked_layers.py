"""The head's loss and the MLP a few rows at a time equal the plain layers: values, gradients, under every wrapper."""

import copy
import math

import pytest
import torch
from torch import nn

from entryclip.lab.lm import GPT, Config
from entryclip.lab.lm.model import blocks, head_loss, row_chunks
from entryclip.lab.lm.model.chunked_mlp import chunked_mlp

CLOSE = {"rtol": 2e-5, "atol": 1e-6}  # fp32 rounding over sums of up to 600 products


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def head_case(tokens, vocabulary=640, width=32):
    """Make features, a head whose logits differ widely, and targets of which every fifth is left out."""
    features = torch.randn(tokens, width, generator=generator()).requires_grad_()
    head = nn.Linear(width, vocabulary, bias=False)
    with torch.no_grad():
        head.weight.copy_(8 * torch.randn(vocabulary, width, generator=generator(1)))
    targets = torch.randint(0, vocabulary, (tokens,), generator=generator(2))
    targets[1::5] = head_loss.IGNORED
    return features, head, targets


def loss_and_gradients(loss, *inputs):
    return loss.detach(), *torch.autograd.grad(loss, inputs)


@pytest.fixture
def few_rows(monkeypatch):
    """Chunks so small that these small cases have several, the last one not full."""
    small = lambda columns, *, megabytes, least=64: 16 * megabytes  # noqa: E731
    for name in ("head_loss", "chunked_mlp"):
        monkeypatch.setattr(f"entryclip.lab.lm.model.{name}.rows_in_cache", small)


@pytest.mark.usefixtures("few_rows")
@pytest.mark.parametrize("tokens", [1, 16, 128, 300])
def test_the_loss_in_chunks_is_the_plain_loss(tokens):
    features, head, targets = head_case(tokens)
    plain = loss_and_gradients(head_loss.plain_head_loss(features, head, targets), features, head.weight)
    chunked = loss_and_gradients(head_loss.chunked_head_loss(features, head.weight, targets), features, head.weight)
    assert plain[0] > 1
    torch.testing.assert_close(chunked, plain, **CLOSE)


@pytest.mark.usefixtures("few_rows")
def test_the_mlp_in_chunks_is_the_plain_mlp():
    mlp = blocks.MLP(32)
    for i, layer in enumerate((mlp.c_fc, mlp.c_proj)):
        nn.init.normal_(layer.weight, std=0.2, generator=generator(i))
    x, dy = (torch.randn(300, 32, generator=generator(seed)) for seed in (2, 3))
    inputs = x.requires_grad_(), mlp.c_fc.weight, mlp.c_proj.weight
    plain, chunked = (loss_and_gradients((y * dy).sum(), *inputs) for y in (mlp.plain(x), chunked_mlp(*inputs)))
    torch.testing.assert_close(chunked, plain, rtol=2e-5, atol=2e-5)
    with torch.no_grad():
        torch.testing.assert_close(chunked_mlp(*inputs), mlp.plain(x), **CLOSE)


@pytest.mark.usefixtures("few_rows")
def test_in_bf16_the_gradients_of_weights_are_sums_over_all_chunks():
    features, head, targets = head_case(300)
    weights = [torch.randn(shape, generator=generator(3)).requires_grad_() for shape in ((64, 32), (32, 64))]

    def both():
        loss = head_loss.chunked_head_loss(features, head.weight, targets)
        y = chunked_mlp(features, *weights).float().square().mean()
        return *torch.autograd.grad(loss, head.weight), *torch.autograd.grad(y, weights)

    exact = both()
    with torch.autocast("cpu", torch.bfloat16):
        rounded = both()
    for one, other in zip(rounded, exact, strict=True):
        assert 1e-4 < (one - other).norm() / other.norm() < 0.02


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, of its compiler
def test_a_compiled_model_takes_other_lengths_and_batches():
    model = filled()
    forward = torch.compile(model, fullgraph=True, backend="aot_eager")
    for sequences, length in ((3, 40), (3, 56), (2, 130)):
        tokens = torch.randint(0, 256, (sequences, length + 1), generator=generator(length))
        loss, found = gradients(model, tokens, forward)
        plain_loss, expected = gradients(model, tokens)
        torch.testing.assert_close((loss, found), (plain_loss, expected), rtol=1e-5, atol=1e-6)


def test_targets_that_are_all_left_out():
    features, head, targets = head_case(4)
    targets[:] = head_loss.IGNORED
    loss = head_loss.chunked_head_loss(features, head.weight, targets)
    assert math.isnan(loss.item())  # as torch's mean over nothing
    assert not any(each.any() for each in torch.autograd.grad(loss, (features, head.weight)))


def test_a_target_beyond_the_vocabulary_is_refused():
    features, head, targets = head_case(4)
    targets[0] = 640
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        head_loss.chunked_head_loss(features, head.weight, targets)


@pytest.mark.parametrize("wanted", [(True, False), (False, True), (False, False)])
def test_only_the_gradients_that_are_wanted_are_computed(wanted):
    features, head, targets = head_case(8)
    features.requires_grad_(wanted[0])
    head.requires_grad_(wanted[1])
    loss, *gradients = head_loss._loss_and_gradients(features, head.weight, targets, *wanted, torch.float32)
    assert [each.numel() > 0 for each in gradients] == list(wanted)
    assert loss.requires_grad == any(wanted)
    loss = head_loss.chunked_head_loss(features, head.weight, targets)
    torch.testing.assert_close(loss, head_loss.plain_head_loss(features, head, targets), **CLOSE)
    with torch.no_grad():
        assert not head_loss.chunked_head_loss(features, head.weight, targets).requires_grad


def test_second_derivatives_are_those_of_the_plain_layers():
    features, head, targets = head_case(8)
    weights = [torch.randn(shape, generator=generator(3)).requires_grad_() for shape in ((64, 32), (32, 64))]
    inputs = features, head.weight, *weights

    def curvature(mlp, loss):
        first = torch.autograd.grad(loss(mlp(features)), inputs, create_graph=True)
        return torch.autograd.grad(sum((each**2).sum() for each in first), inputs)

    chunked = curvature(
        lambda x: chunked_mlp(x, *weights), lambda y: head_loss.chunked_head_loss(y, head.weight, targets)
    )
    plain = curvature(
        lambda x: torch.relu(x @ weights[0].t()).square() @ weights[1].t(),
        lambda y: head_loss.plain_head_loss(y, head, targets),
    )
    for one, other in zip(chunked, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5 * float(other.abs().max()))


def filled(seed=0):
    model = GPT(Config.tiny(), generator(seed))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=generator(seed)))
    return model


def take_plain_layers(monkeypatch):
    for name in ("head_loss", "blocks", "attention"):
        monkeypatch.setattr(f"entryclip.lab.lm.model.{name}.can_chunk", lambda *_: False)


def gradients(model, tokens, forward=None):
    model.zero_grad()
    loss = (model if forward is None else forward)(tokens[:, :-1], tokens[:, 1:])
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, of its compiler
@pytest.mark.parametrize("compiled", [False, True])
def test_the_model_has_the_loss_and_gradients_of_the_plain_layers(monkeypatch, compiled):
    model, tokens = filled(), torch.randint(0, 256, (3, 41), generator=generator(5))
    forward = torch.compile(model, fullgraph=True) if compiled else model
    loss, found = gradients(model, tokens, forward)
    with torch.no_grad():
        logits = model(tokens[:, :-1])
    take_plain_layers(monkeypatch)
    plain_loss, expected = gradients(copy.deepcopy(model), tokens)
    torch.testing.assert_close(loss, plain_loss, **CLOSE)
    torch.testing.assert_close(
        loss, nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()), **CLOSE
    )
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5 * float(value.abs().max()), msg=name)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, of its compiler
@pytest.mark.parametrize("compiled", [False, True])
def test_under_autocast_the_chunked_layers_are_no_further_from_fp32_than_the_plain_ones(monkeypatch, compiled):
    model, tokens = filled(), torch.randint(0, 256, (3, 41), generator=generator(5))
    exact_loss, exact = gradients(model, tokens)

    def distances(forward):
        with torch.autocast("cpu", torch.bfloat16):
            loss, found = gradients(model, tokens, forward)
        assert all(each.dtype == torch.float32 for each in found.values())
        return [abs(loss - exact_loss), *((found[name] - exact[name]).norm() / exact[name].norm() for name in exact)]

    chunked = distances(torch.compile(model, fullgraph=True, backend="aot_eager") if compiled else model)
    assert 1e-4 < max(chunked) < 0.03  # products were rounded to 8 bits
    take_plain_layers(monkeypatch)
    assert sum(chunked) < 1.1 * sum(distances(model))


def test_modules_with_hooks_are_called():
    model, tokens, seen = filled(), torch.arange(40).view(2, 20), []
    for name in ("lm_head", "blocks.0.mlp.c_fc", "blocks.1.mlp.c_proj"):
        model.get_submodule(name).register_forward_hook(lambda *_, name=name: seen.append(name))
    model.blocks[0].mlp.c_proj.register_full_backward_hook(lambda *_: seen.append("backward"))
    model(tokens, tokens).backward()
    assert seen == ["blocks.0.mlp.c_fc", "blocks.1.mlp.c_proj", "lm_head", "backward"]
    seen.clear()
    hook = torch.nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(type(module)))
    other = filled()
    other(tokens, tokens)
    hook.remove()
    assert seen.count(nn.Linear) == len([each for each in other.modules() if type(each) is nn.Linear])
    other.lm_head.forward = lambda x: x.new_zeros(*x.shape[:-1], 384)
    assert other(tokens, tokens).item() == pytest.approx(math.log(384))


def test_gradients_by_torch_func():
    model, tokens = filled(), torch.randint(0, 256, (3, 21), generator=generator(5))

    def loss(weights):
        return torch.func.functional_call(model, weights, (tokens[:, :-1], tokens[:, 1:]))

    found = torch.func.grad(loss)(dict(model.named_parameters()))
    for name, value in gradients(model, tokens)[1].items():
        torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-4 * float(value.abs().max()), msg=name)


def test_where_layers_are_chunked():
    x, layer = torch.ones(2, 8), nn.Linear(8, 8, bias=False)
    assert row_chunks.can_chunk(x, layer)
    assert not row_chunks.can_chunk(x.double(), layer)
    assert not row_chunks.can_chunk(x, nn.Linear(8, 8))  # a bias
    assert not row_chunks.can_chunk(x, nn.Sequential(layer))
    assert not row_chunks.can_chunk(x, copy.deepcopy(layer).bfloat16())
    assert not row_chunks.can_chunk(x.to("meta"), layer)
    with torch.autocast("cpu", torch.bfloat16):
        assert row_chunks.can_chunk(x, layer)
    with torch.autocast("cpu", torch.float16):
        assert not row_chunks.can_chunk(x, layer)
