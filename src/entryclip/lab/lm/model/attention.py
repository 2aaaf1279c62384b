"""Who may look at whom: back in time, within a document, in a sliding window of blocks.

Two paths, one result: FlexAttention, which skips blocks that nobody sees, on a GPU; a dense mask elsewhere.
"""

import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]  # q, k, v -> y, all (sequences, heads, length, head_size)


def document_numbers(tokens: Tensor, separator: int) -> Tensor:
    """The number of the document that each token of (sequences, length) is in; a separator opens one.

    >>> document_numbers(torch.tensor([[5, 9, 5, 5, 9]]), 9)
    tensor([[0, 1, 1, 1, 2]])
    """
    return (tokens == separator).cumsum(-1)


def dense_mask(documents: Tensor, *, blocks: int | Tensor, block: int) -> Tensor:
    """The mask in full, (sequences, 1, length, length); True: may look. The specification of both paths.

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


def attend(documents: Tensor, *, blocks: int | Tensor, block: int, scale: float, flex: bool | None = None) -> Attend:
    """Attention under that mask; the mask is made once here, for all layers with this window.

    blocks  how far to look back; as a tensor it is not looked at before it is used: a compiled model stays the same
    flex    True: FlexAttention; False: a dense mask; None: FlexAttention where the tokens are on a GPU
    """
    if not isinstance(blocks, Tensor) and blocks < 1:
        raise ValueError(f"a window must have at least 1 block, got {blocks}")
    if documents.is_cuda if flex is None else flex:
        return _flex(documents, blocks=blocks, block=block, scale=scale)
    mask = dense_mask(documents, blocks=blocks, block=block)
    return lambda q, k, v: scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)


def _flex(documents: Tensor, *, blocks: int | Tensor, block: int, scale: float) -> Attend:
    window = torch.as_tensor(blocks, device=documents.device)  # a tensor: a growing window compiles once

    def visible(sequence: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        near = query // block - key // block < window
        return (query >= key) & near & (documents[sequence, query] == documents[sequence, key])

    make, run = _flex_functions(documents.is_cuda)
    sequences, length = documents.shape
    mask = make(visible, sequences, None, length, length, device=str(documents.device))
    return lambda q, k, v: run(q, k, v, block_mask=mask, scale=scale)


@functools.cache
def _flex_functions(compiled: bool) -> tuple[Callable[..., object], Callable[..., Tensor]]:
    """Compiled on a GPU, where the plain versions would write out the length x length matrix."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    if compiled:
        return torch.compile(create_block_mask), torch.compile(flex_attention)
    return create_block_mask, flex_attention
