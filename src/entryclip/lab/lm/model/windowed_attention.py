"""Attention on a CPU that computes only the keys which a window leaves: a few queries at a time.

    y = softmax(scale q k^T + bias) v

`bias` is 0 where a query may attend to a key and -inf elsewhere. A chunk of queries takes the keys from the first that
its window reaches to its own last one, so what is causally masked, or out of reach, is mostly not computed at all. Two
operators to torch.compile, forward and backward. The backward pass reads the probabilities, which the forward pass
keeps: half of a (length, length) matrix for every head, hence for short sequences. Autocast, which rounds the factors
of `@`, leaves products into given memory alone: all are in fp32.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

LONGEST = 512  # tokens of a sequence: beyond it the probabilities take more memory than their reuse is worth
_QUERIES = 64  # in a chunk: with fewer the products are too small, with more too much of them is masked


def windowed_attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, *, blocks: int | Tensor, block: int, scale: float
) -> Tensor:
    """Compute attention up to rounding; q, k, v and the result are (sequences, heads, length, head_size), in fp32.

    bias    (sequences, 1, length, length): 0 or -inf, the latter wherever the key comes after the query or its block
            is `blocks` or more before that of the query; every query has a key
    blocks  number of blocks of `block` tokens a query reaches back over, its own included
    """
    wanted = torch.is_grad_enabled() and any(each.requires_grad for each in (q, k, v))
    reach = torch.as_tensor(blocks)  # a tensor: a growing window compiles once
    y: Tensor = _forward(q, k, v, bias, reach, block, scale, wanted)[0]
    return y


@torch.library.custom_op("entryclip::attention", mutates_args=())
def _forward(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, reach: Tensor, block: int, scale: float, keep: bool
) -> tuple[Tensor, Tensor]:
    """Return y and, where they are to be kept, the probabilities, chunk after chunk."""
    heads = q.shape[1]
    qs, ks, vs = (_by_head(each) for each in (q * scale, k, v))
    y, kept = torch.empty_like(qs), q.new_empty(_room(q) if keep else 0)
    scratch = kept if keep else q.new_empty(len(qs) * _QUERIES * q.shape[2])
    for rows, keys, place in _chunks(q, reach, block):
        p = scratch[place if keep else slice(0, place.stop - place.start)].view(len(qs), rows.stop - rows.start, -1)
        torch.bmm(qs[:, rows], ks[:, keys].transpose(1, 2), out=p)
        p.view(-1, heads, *p.shape[1:]).add_(bias[:, :, rows, keys])
        torch.bmm(torch.softmax(p, -1, out=p), vs[:, keys], out=y[:, rows])
    return y.view(q.shape), kept


@torch.library.custom_op("entryclip::attention_backward", mutates_args=())
def _backward(
    dy: Tensor, q: Tensor, k: Tensor, v: Tensor, kept: Tensor, reach: Tensor, block: int, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients in q, k and v."""
    dys, qs, ks, vs = (_by_head(each) for each in (dy, q * scale, k, v))
    dq, dk, dv = torch.empty_like(qs), torch.zeros_like(qs), torch.zeros_like(qs)
    for rows, keys, place in _chunks(q, reach, block):
        p, d = kept[place].view(len(qs), rows.stop - rows.start, -1), dys[:, rows]
        dv[:, keys].baddbmm_(p.transpose(1, 2), d)
        ds = torch.bmm(d, vs[:, keys].transpose(1, 2), out=torch.empty_like(p))
        torch._softmax_backward_data(ds, p, -1, ds.dtype, grad_input=ds)
        torch.bmm(ds, ks[:, keys], out=dq[:, rows])
        dk[:, keys].baddbmm_(ds.transpose(1, 2), qs[:, rows])
    return dq.mul_(scale).view(q.shape), dk.view(q.shape), dv.view(q.shape)


@_forward.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, reach: Tensor, block: int, scale: float, keep: bool
) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty(_room(q) if keep else 0)


@_backward.register_fake
def _(
    dy: Tensor, q: Tensor, k: Tensor, v: Tensor, kept: Tensor, reach: Tensor, block: int, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape), q.new_empty(q.shape)


def _keep(
    ctx: torch.autograd.function.FunctionCtx,
    inputs: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, int, float, bool],
    output: tuple[Tensor, Tensor],
) -> None:
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*inputs[:5], output[1])
    ctx.block, ctx.scale = inputs[5:7]  # type: ignore[attr-defined]


def _differentiate(ctx: torch.autograd.function.BackwardCFunction, dy: Tensor, _: object) -> tuple[Tensor | None, ...]:
    q, k, v, bias, reach, kept = list(ctx.saved_tensors)
    block, scale = ctx.block, ctx.scale  # type: ignore[attr-defined]
    none = (None,) * 5
    if not torch.is_grad_enabled():
        return *_backward(dy, q, k, v, kept, reach, block, scale), *none
    p = torch.softmax(q @ k.transpose(-1, -2) * scale + bias, -1)  # create_graph=True: these have a derivative
    dp = dy @ v.transpose(-1, -2)
    ds = p * (dp - (dp * p).sum(-1, keepdim=True)) * scale
    return ds @ k, ds.transpose(-1, -2) @ q, p.transpose(-1, -2) @ dy, *none


_forward.register_autograd(_differentiate, setup_context=_keep)


def _by_head(x: Tensor) -> Tensor:
    """(sequences, heads, length, head_size) -> (sequences * heads, length, head_size), contiguous"""
    return x.contiguous().flatten(0, 1)


def _room(q: Tensor) -> int:
    """Return how many probabilities a forward pass keeps at most: all that are not causally masked, in whole chunks."""
    sequences, heads, length, _ = q.shape
    whole, rest = length // _QUERIES, length % _QUERIES  # not divmod: a compiled length may be a symbol
    return sequences * heads * (_QUERIES * _QUERIES * whole * (whole + 1) // 2 + rest * length)


def _chunks(q: Tensor, reach: Tensor, block: int) -> Iterator[tuple[slice, slice, slice]]:
    """Yield for every chunk of queries its rows, the keys that its window reaches, and its place in `kept`."""
    sequences, heads, length, _ = q.shape
    blocks, start = int(reach), 0
    for first in range(0, length, _QUERIES):
        last = min(first + _QUERIES, length)
        key = max((first // block - blocks + 1) * block, 0)
        end = start + sequences * heads * (last - first) * (last - key)
        yield slice(first, last), slice(key, last), slice(start, end)
        start = end
