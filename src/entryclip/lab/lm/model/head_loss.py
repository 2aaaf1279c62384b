"""The head of the language model: capped logits, and their mean cross entropy without ever holding all of them.

    logits = 30 sigmoid(features weight^T / (7.5 sqrt(width)))

A batch of 4096 tokens with a vocabulary of 4096 has 64 MB of logits, and the plain loss goes through memory of this
size more than ten times. `chunked_head_loss` takes a few rows at a time, so that their logits stay in the cache of the
processor, and computes loss and gradients together: each chunk has all that its part of the gradient needs
(the idea of a fused linear cross entropy, as in Liger Kernel, arXiv:2410.10989).
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .row_chunks import add_product_, can_chunk, product_dtype, rows_in_cache

IGNORED = -100  # the target that torch's cross entropy leaves out
_CAP = 30.0  # logits lie between 0 and this


def logit_scale(width: int) -> float:
    """Return the factor of the head's output inside the sigmoid."""
    return 1 / (7.5 * math.sqrt(width))


def capped_logits(raw: Tensor, width: int) -> Tensor:
    """Compute the logits, in fp32, from the head's output."""
    return _CAP * torch.sigmoid(raw.float() * logit_scale(width))


def head_loss(features: Tensor, head: nn.Module, targets: Tensor) -> Tensor:
    """Compute the mean cross entropy of the head's logits, in chunks where that is faster and gives the same.

    features    (tokens, width)
    targets     (tokens,); `IGNORED` leaves a token out
    """
    if can_chunk(features, head):
        return chunked_head_loss(features, head.weight, targets)  # type: ignore[arg-type]
    return plain_head_loss(features, head, targets)


def plain_head_loss(features: Tensor, head: nn.Module, targets: Tensor) -> Tensor:
    """Compute the mean cross entropy from all logits at once: the specification of `chunked_head_loss`.

    features    (tokens, width)
    targets     (tokens,); `IGNORED` leaves a token out
    """
    return _plain_loss(head(features), features.shape[-1], targets)


def _plain_loss(raw: Tensor, width: int, targets: Tensor) -> Tensor:
    return cross_entropy(capped_logits(raw, width), targets, ignore_index=IGNORED)


def chunked_head_loss(features: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Compute `plain_head_loss` of a linear head up to rounding, and its gradient with it where one is wanted.

    features    (tokens, width), fp32 on a CPU, as the weight, (vocabulary, width); under autocast to bf16 the factors
                and results of all products are rounded to bf16
    targets     (tokens,); `IGNORED` leaves a token out
    """
    wanted = torch.is_grad_enabled()
    loss: Tensor = _loss_and_gradients(
        *(features, weight, targets),
        *(wanted and each.requires_grad for each in (features, weight)),
        product_dtype(),
    )[0]
    return loss


@torch.library.custom_op("entryclip::head_loss", mutates_args=())
def _loss_and_gradients(
    features: Tensor, weight: Tensor, targets: Tensor, want_features: bool, want_weight: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean loss, and its gradients in features and weight, empty where they are not wanted.

    One operator to torch.compile: written out, the loop over the chunks would be compiled chunk by chunk.
    """
    scale, used = logit_scale(features.shape[1]), targets != IGNORED
    count, scaled, aims = used.sum(), features * scale, targets.where(used, 0)[:, None]
    left_out = None if bool(used.all()) else ~used[:, None]
    chosen = features.new_empty(len(features), 1)  # the probabilities of the targets
    by_weight = torch.zeros_like(weight) if want_weight else weight.new_empty(0)
    scaled, weight = scaled.to(dtype), weight.to(dtype)
    by_features = torch.empty_like(scaled) if want_features else scaled.new_empty(0)
    step = rows_in_cache(len(weight), megabytes=8)
    product = scaled.new_empty(step, len(weight))
    for first in range(0, len(features), step):
        rows = slice(first, first + step)
        x = scaled[rows]
        d = torch.mm(x, weight.t(), out=product[: len(x)])
        _turn_into_gradient_(d, aims[rows], chosen[rows], want_features or want_weight)
        if left_out is not None:
            d.masked_fill_(left_out[rows], 0)
        if want_features:
            torch.mm(d, weight, out=by_features[rows])
        if want_weight:
            add_product_(by_weight, d.t(), x)
    losses = chosen.log_().neg_()
    losses = losses if left_out is None else losses.masked_fill_(left_out, 0)
    factor = _CAP / count.clamp(min=1)  # as torch: with no token at all the loss is NaN, and the gradient 0
    return losses.sum() / count, by_features.to(features.dtype).mul_(factor * scale), by_weight.mul_(factor)


def _turn_into_gradient_(raw: Tensor, aims: Tensor, chosen: Tensor, want_gradient: bool) -> None:
    """Write the probabilities of the targets, and overwrite `raw` by the gradient of the loss in it, over the cap.

    raw             the input of the sigmoid, (rows, vocabulary)
    aims, chosen    the targets and their probabilities, (rows, 1)
    """
    step = rows_in_cache(raw.shape[1], megabytes=1, least=1)
    space, minus = chosen.new_empty(step, raw.shape[1]), chosen.new_full((step, 1), -1.0)
    for first in range(0, len(raw), step):
        rows = slice(first, first + step)
        sigmoid, aim = raw[rows].float().sigmoid_(), aims[rows]
        p = space[: len(aim)]
        torch.softmax(torch.mul(sigmoid, _CAP, out=p), 1, out=p)  # above exp(-30) / vocabulary: its log is finite
        torch.gather(p, 1, aim, out=chosen[rows])
        if want_gradient:
            p.scatter_add_(1, aim, minus[: len(aim)])
            torch.ops.aten.sigmoid_backward.grad_input(p, sigmoid, grad_input=sigmoid)  # p sigmoid (1 - sigmoid)
            if raw.dtype != sigmoid.dtype:
                raw[rows] = sigmoid


@_loss_and_gradients.register_fake
def _(
    features: Tensor, weight: Tensor, targets: Tensor, want_features: bool, want_weight: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    gradients = ((features, want_features), (weight, want_weight))
    by_features, by_weight = (torch.empty_like(each) if wanted else each.new_empty(0) for each, wanted in gradients)
    return features.new_empty(()), by_features, by_weight


def _keep(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(*inputs[:3], *output[1:])


def _backward(ctx: torch.autograd.function.BackwardCFunction, by_loss: Tensor, *_: object) -> tuple[Tensor | None, ...]:
    features, weight, targets, *gradients = list(ctx.saved_tensors)
    needed, rest = ctx.needs_input_grad[:2], (None,) * 4
    if torch.is_grad_enabled():  # create_graph=True: the gradients must have a derivative themselves
        loss = _plain_loss(features @ weight.t(), features.shape[1], targets)
        wanted = [each for each, need in zip((features, weight), needed, strict=True) if need]
        found = iter(torch.autograd.grad(loss, wanted, by_loss, create_graph=True))
        return *(next(found) if need else None for need in needed), *rest
    return *(by_loss * each if need else None for each, need in zip(gradients, needed, strict=True)), *rest


_loss_and_gradients.register_autograd(_backward, setup_context=_keep)
