"""Attention that skips keys out of reach equals attention under the dense mask: values, gradients, what it computes."""

import pytest
import torch

from entryclip.lab.lm.model import windowed_attention as windowed
from entryclip.lab.lm.model.attention import dense_mask, document_numbers, masked_attention

BLOCK, SCALE = 16, 0.12


def draw(length, sequences=2, heads=3, size=8):
    generator = torch.Generator().manual_seed(length)
    tokens = torch.randint(0, 60, (sequences, length), generator=generator)
    shape = sequences, length, heads, size  # as the model's: heads beside each other, so no head is contiguous
    tensors = [torch.randn(shape, generator=generator).transpose(1, 2).requires_grad_() for _ in range(4)]
    return document_numbers(tokens, 6), tensors[:3], tensors[3].detach()


def both(documents, blocks):
    return [masked_attention(documents, blocks=blocks, block=BLOCK, scale=SCALE, flex=flex) for flex in (False, None)]


@pytest.mark.parametrize("length", [1, 40, 64, 200, 256])
@pytest.mark.parametrize("blocks", [1, 3, 5, 100, torch.tensor(2)])
def test_values_and_gradients_are_those_of_the_dense_mask(length, blocks):
    documents, qkv, dy = draw(length)
    results = []
    for attend in both(documents, blocks):
        y = attend(*qkv)
        results.append([y.detach(), *torch.autograd.grad((y * dy).sum(), qkv)])
    torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(both(documents, blocks)[1](*qkv), results[0][0], rtol=1e-5, atol=1e-6)


def test_second_derivatives_are_those_of_the_dense_mask():
    documents, qkv, dy = draw(70)
    mask = dense_mask(documents, blocks=3, block=BLOCK)

    def plain(q, k, v):
        return torch.softmax((q @ k.transpose(-1, -2) * SCALE).masked_fill(~mask, -torch.inf), -1) @ v

    def curvature(attend):
        first = torch.autograd.grad((attend(*qkv) * dy).sum(), qkv, create_graph=True)
        return torch.autograd.grad(sum((each**2).sum() for each in first), qkv)

    torch.testing.assert_close(curvature(both(documents, 3)[1]), curvature(plain), rtol=1e-4, atol=1e-4)


def test_keys_out_of_reach_are_not_computed():
    """Of 256 x 256 products, a chunk of 64 queries computes its own 64 keys and those that its window reaches."""
    q = torch.empty(1, 1, 256, 8)

    def computed(blocks):
        return [place.stop - place.start for _, _, place in windowed._chunks(q, torch.tensor(blocks), BLOCK)]

    assert computed(1) == [64 * 64] * 4
    assert computed(3) == [64 * 64, *[64 * (64 + 2 * BLOCK)] * 3]
    assert computed(100) == [64 * 64 * n for n in (1, 2, 3, 4)]
    assert sum(computed(100)) == windowed._room(q)


def test_bf16_is_computed_in_fp32_also_under_autocast():
    documents, qkv, _ = draw(100)
    rounded = [each.detach().bfloat16() for each in qkv]
    dense, attend = both(documents, 3)
    with torch.autocast("cpu", torch.bfloat16):
        y = attend(*rounded)
    assert torch.equal(y, attend(*(each.float() for each in rounded)).bfloat16())
    torch.testing.assert_close(y.float(), dense(*(each.float() for each in rounded)), rtol=2**-8, atol=1e-4)


def test_it_is_taken_for_short_sequences_alone(monkeypatch):
    calls = []
    monkeypatch.setattr(
        "entryclip.lab.lm.model.attention.windowed_attention",
        lambda q, *_, **__: calls.append(q.dtype) or torch.zeros_like(q),
    )
    for length, dtype in ((windowed.LONGEST, torch.float32), (windowed.LONGEST + 1, torch.float32), (8, torch.float64)):
        documents, qkv, _ = draw(length, sequences=1, heads=1)
        both(documents, 2)[1](*(each.to(dtype) for each in qkv))
    assert calls == [torch.float32]
