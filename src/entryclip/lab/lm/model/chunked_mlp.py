"""The MLP with squared ReLU a few rows at a time, so that its inner activations, four times as wide, stay in the cache.

    y = relu(x inner^T)^2 outer^T

Two operators to torch.compile, forward and backward. The backward pass reads relu(x inner^T), which the forward pass
keeps; its square is computed again.
"""

import torch
from torch import Tensor

from .row_chunks import add_product_, product_dtype, rows_in_cache


def chunked_mlp(x: Tensor, inner: Tensor, outer: Tensor) -> Tensor:
    """Compute the MLP of x, (tokens, width), up to rounding; inner is (hidden, width), outer (width, hidden).

    All are fp32. Under autocast to bf16 the factors of all products and the result are rounded to bf16.
    """
    wanted = torch.is_grad_enabled() and any(each.requires_grad for each in (x, inner, outer))
    y: Tensor = _forward(x, inner, outer, wanted, product_dtype())[0]
    return y


@torch.library.custom_op("entryclip::mlp", mutates_args=())
def _forward(x: Tensor, inner: Tensor, outer: Tensor, keep: bool, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return y and, where it is to be kept, relu(x inner^T), both in this precision."""
    rows = _rows(inner)
    x, inner, outer = (each.to(dtype) for each in (x, inner, outer))
    y, kept = torch.empty_like(x), x.new_empty(len(x) if keep else 0, len(inner))
    square = x.new_empty(rows, len(inner))
    for first in range(0, len(x), rows):
        part = slice(first, first + rows)
        s = square[: len(x[part])]
        r = torch.mm(x[part], inner.t(), out=kept[part] if keep else s).relu_()
        torch.mm(torch.mul(r, r, out=s), outer.t(), out=y[part])
    return y, kept


@torch.library.custom_op("entryclip::mlp_backward", mutates_args=())
def _backward(dy: Tensor, x: Tensor, inner: Tensor, outer: Tensor, kept: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients in x, inner and outer, in their precision; the products are in that of `kept`."""
    rows = _rows(inner)
    by_inner, by_outer = torch.zeros_like(inner), torch.zeros_like(outer)
    dy, x, inner, outer = (each.to(kept.dtype) for each in (dy, x, inner, outer))
    dx = torch.empty_like(x)
    derivative, square = x.new_empty(rows, len(inner)), x.new_empty(rows, len(inner))
    for first in range(0, len(x), rows):
        part = slice(first, first + rows)
        r, g = kept[part], dy[part]
        d, s = derivative[: len(r)], square[: len(r)]
        add_product_(by_outer, g.t(), torch.mul(r, r, out=s))
        torch.mm(g, outer, out=d).mul_(r)
        torch.mm(d, inner, out=dx[part])
        add_product_(by_inner, d.t(), x[part])
    return dx.to(by_inner.dtype).mul_(2), by_inner.mul_(2), by_outer


@_forward.register_fake
def _(x: Tensor, inner: Tensor, outer: Tensor, keep: bool, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x, dtype=dtype), x.new_empty(len(x) if keep else 0, len(inner), dtype=dtype)


@_backward.register_fake
def _(dy: Tensor, x: Tensor, inner: Tensor, outer: Tensor, kept: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(inner), torch.empty_like(outer)


def _keep(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*inputs[:3], output[1])


def _differentiate(ctx: torch.autograd.function.BackwardCFunction, dy: Tensor, _: object) -> tuple[Tensor | None, ...]:
    x, inner, outer, kept = list(ctx.saved_tensors)
    if not torch.is_grad_enabled():
        return *_backward(dy.contiguous(), x, inner, outer, kept), None, None
    dy = dy.to(x.dtype)
    r = torch.relu(x @ inner.t())  # create_graph=True: the same in functions that have a derivative themselves
    d = 2 * r * (dy @ outer)
    return d @ inner, d.t() @ x, dy.t() @ r.square(), None, None


_forward.register_autograd(_differentiate, setup_context=_keep)


def _rows(inner: Tensor) -> int:
    return rows_in_cache(len(inner), megabytes=1)
