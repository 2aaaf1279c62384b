import inspect

import pytest
import torch

from entryclip.lab.lm.model.attention import dense_mask, document_numbers, masked_attention

BLOCK = 4


def draw(sequences=2, heads=3, length=40, size=8):
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 7, (sequences, length), generator=generator)
    q, k, v = (torch.randn(sequences, heads, length, size, generator=generator) for _ in range(3))
    return document_numbers(tokens, 6), q, k, v


def test_the_mask_is_what_it_says():
    documents, *_ = draw()
    mask = dense_mask(documents, blocks=3, block=BLOCK)
    for sequence, query, key in [(s, i, j) for s in range(2) for i in range(40) for j in range(40)]:
        near = query // BLOCK - key // BLOCK <= 2
        expected = key <= query and near and documents[sequence, query] == documents[sequence, key]
        assert mask[sequence, 0, query, key] == expected


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("blocks", [1, 3, 10])
def test_flex_attention_gives_the_same(blocks):
    documents, *qkv = draw()
    dense, flex = (
        masked_attention(documents, blocks=blocks, block=BLOCK, scale=0.12, flex=f)(*qkv) for f in (False, True)
    )
    torch.testing.assert_close(dense, flex, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_skips_only_blocks_that_nobody_sees():
    """Uncompiled FlexAttention masks every entry, so a wrong block mask would show on a GPU only: compare the masks."""
    tokens = torch.zeros(1, 1024, dtype=torch.long)
    tokens[0, 300] = 6
    documents, seen = document_numbers(tokens, 6), []
    for blocks in (1, 3):
        attention = masked_attention(documents, blocks=blocks, block=128, scale=1.0, flex=True)
        mask = inspect.getclosurevars(attention).nonlocals["mask"].to_dense()[0, 0].bool()
        dense = dense_mask(documents, blocks=blocks, block=128)[0, 0]
        assert torch.equal(mask, dense.view(8, 128, 8, 128).any(3).any(1))
        seen.append(int(mask.sum()))
    assert seen[0] == 8 < seen[1] < 8 * 9 // 2


def test_a_window_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least 1 block, got 0"):
        masked_attention(draw()[0], blocks=0, block=BLOCK, scale=1.0)
