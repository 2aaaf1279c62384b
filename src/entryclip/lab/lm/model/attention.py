"""Attention that is causal, stays within a document, and reaches back over a sliding window of blocks.

Three implementations with one result: FlexAttention, which skips blocks that are masked entirely, on a GPU;
`windowed_attention`, which skips most of what is masked, for short sequences on a CPU; a dense mask elsewhere.
"""

import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from .row_chunks import can_chunk
from .windowed_attention import LONGEST, windowed_attention

AttentionFunction = Callable[
    [Tensor, Tensor, Tensor], Tensor
]  # q, k, v -> y, all (sequences, heads, length, head_size)


def document_numbers(tokens: Tensor, separator: int) -> Tensor:
    """Number the documents in each sequence: a separator opens the next one. (sequences, length) -> the same shape.

    >>> document_numbers(torch.tensor([[5, 9, 5, 5, 9]]), 9)
    tensor([[0, 1, 1, 1, 2]])
    """
    return (tokens == separator).cumsum(-1)


def dense_mask(documents: Tensor, *, blocks: int | Tensor, block: int) -> Tensor:
    """Write out the attention mask, (sequences, 1, length, length), True where a query (row) may attend to a key.

    It specifies what all implementations compute.

    documents   the document of each token, (sequences, length)
    blocks      number of blocks a query reaches back over, its own included
    block       tokens per block

    >>> dense_mask(torch.tensor([[0, 0, 1, 1]]), blocks=2, block=1)[0, 0].int()
    tensor([[1, 0, 0, 0],
            [1, 1, 0, 0],
            [0, 0, 1, 0],
            [0, 0, 1, 1]], dtype=torch.int32)
    """
    place = torch.arange(documents.shape[-1], device=documents.device)
    near = place[:, None] // block - place // block < blocks
    same = documents[:, :, None] == documents[:, None, :]
    return ((place[:, None] >= place) & near & same)[:, None]


def masked_attention(
    documents: Tensor, *, blocks: int | Tensor, block: int, scale: float, flex: bool | None = None
) -> AttentionFunction:
    """Make the attention function under `dense_mask(documents, blocks, block)`, to be shared by layers.

    blocks  a tensor where the model is compiled: its value is not read here, so a growing window compiles once
    scale   multiplies the inner products of queries and keys
    flex    True: FlexAttention; False: a dense mask; None: FlexAttention where the tokens are on a GPU, and on a CPU
            `windowed_attention` where it can be used
    """
    if not isinstance(blocks, Tensor) and blocks < 1:
        raise ValueError(f"a window must have at least 1 block, got {blocks}")
    if documents.is_cuda if flex is None else flex:
        return _flex_attention(documents, blocks=blocks, block=block, scale=scale)
    mask = dense_mask(documents, blocks=blocks, block=block)
    dense: AttentionFunction = functools.partial(scaled_dot_product_attention, attn_mask=mask, scale=scale)
    if flex is False or documents.shape[-1] > LONGEST:
        return dense
    bias = torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask, -torch.inf)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if q.dtype not in (torch.float32, torch.bfloat16) or not can_chunk(q.float()):  # or device, or torch.func
            return dense(q, k, v)
        in_fp32 = q.float(), k.float(), v.float()  # for bf16, too: its probabilities would keep 8 bits
        return windowed_attention(*in_fp32, bias, blocks=blocks, block=block, scale=scale).to(q.dtype)

    return attend


def _flex_attention(documents: Tensor, *, blocks: int | Tensor, block: int, scale: float) -> AttentionFunction:
    window = torch.as_tensor(blocks, device=documents.device)  # a tensor: a growing window compiles once

    def visible(sequence: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        near = query // block - key // block < window
        return (query >= key) & near & (documents[sequence, query] == documents[sequence, key])

    make_mask, attend = _flex_functions(documents.is_cuda)
    sequences, length = documents.shape
    mask = make_mask(visible, sequences, None, length, length, device=str(documents.device))
    return lambda q, k, v: attend(q, k, v, block_mask=mask, scale=scale)


@functools.cache
def _flex_functions(compiled: bool) -> tuple[Callable[..., object], Callable[..., Tensor]]:
    """Return create_block_mask and flex_attention, compiled on a GPU: uncompiled they build the full matrix."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    if compiled:
        return torch.compile(create_block_mask), torch.compile(flex_attention)
    return create_block_mask, flex_attention
