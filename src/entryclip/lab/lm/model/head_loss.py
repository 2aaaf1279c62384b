"""The head of the language model: capped logits, and their mean cross entropy without ever holding all of them.

    logits = 30 sigmoid(features weight^T / (7.5 sqrt(width)))

A batch of 4096 tokens with a vocabulary of 4096 has 64 MB of logits, and the plain loss goes through memory of this size
more than ten times. `chunked_head_loss` takes a few rows at a time, so that their logits stay in the cache of the
processor, and computes loss and gradients together: each chunk has all that its part of the gradient needs
(the idea of a fused linear cross entropy, as in Liger Kernel, arXiv:2410.10989).
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

IGNORED = -100  # the target that torch's cross entropy leaves out
_CAP = 30.0  # logits lie between 0 and this
_PRODUCT_ROWS = 256  # rows of a matrix product: enough for its full speed
_CHUNK_ROWS = 64  # rows of a pass over logits: at 4096 logits, twice 1 MB


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
    return cross_entropy(capped_logits(head(features), features.shape[-1]), targets, ignore_index=IGNORED)


def can_chunk(features: Tensor, head: nn.Module) -> bool:
    """Tell whether `chunked_head_loss` may stand in for the plain loss: an ordinary head in fp32 on a CPU.

    A head with hooks, one that was replaced or is sharded on its own, autocast, torch.func, and a GPU, where the
    cache plays another part, take the plain loss.
    """
    if type(head) is not nn.Linear or head.bias is not None or head._forward_hooks or head._forward_pre_hooks:
        return False
    if not features.device.type == head.weight.device.type == "cpu" or torch.is_autocast_enabled("cpu"):
        return False
    if not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    return type(head.weight) in (Tensor, nn.Parameter) and features.dtype == head.weight.dtype == torch.float32


def chunked_head_loss(features: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Compute `plain_head_loss` of a linear head up to rounding, and its gradient with it where one is wanted.

    features    (tokens, width), fp32 on a CPU, as the weight, (vocabulary, width)
    targets     (tokens,); `IGNORED` leaves a token out
    """
    wanted = torch.is_grad_enabled()
    loss: Tensor = _loss_and_gradients(
        *(features, weight, targets), wanted and features.requires_grad, wanted and weight.requires_grad
    )[0]
    return loss


@torch.library.custom_op("entryclip::head_loss", mutates_args=())
def _loss_and_gradients(
    features: Tensor, weight: Tensor, targets: Tensor, want_features: bool, want_weight: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean loss, and its gradients in features and weight, empty where they are not wanted.

    One operator to torch.compile: written out, the loop over the chunks would be compiled chunk by chunk.
    """
    scale, used = logit_scale(features.shape[1]), targets != IGNORED
    scaled, aims = features * scale, targets.where(used, 0)[:, None]
    losses = torch.empty_like(features[:, 0])
    by_features, by_weight = torch.empty_like(features), torch.zeros_like(weight)
    raw = features.new_empty(_PRODUCT_ROWS, weight.shape[0])
    work = features.new_empty(_CHUNK_ROWS, weight.shape[0])
    for first in range(0, len(features), _PRODUCT_ROWS):
        rows = slice(first, first + _PRODUCT_ROWS)
        x = scaled[rows]
        d = torch.mm(x, weight.t(), out=raw[: len(x)])
        for parts in zip(*(each.split(_CHUNK_ROWS) for each in (d, aims[rows], used[rows], losses[rows])), strict=True):
            _chunk_(*parts, work[: len(parts[0])], want_features or want_weight)
        if want_features:
            torch.mm(d, weight, out=by_features[rows])
        if want_weight:
            by_weight.addmm_(d.t(), x)
    count = used.sum()
    factor = _CAP / count.clamp(min=1)  # as torch: with no token at all the loss is NaN, and the gradient 0
    nothing = features.new_empty(0)
    return (
        losses.sum() / count,
        by_features.mul_(factor * scale) if want_features else nothing,
        by_weight.mul_(factor) if want_weight else nothing.clone(),
    )


def _chunk_(raw: Tensor, aims: Tensor, used: Tensor, losses: Tensor, work: Tensor, want_gradient: bool) -> None:
    """Write the losses of some rows, and turn `raw`, the input of the sigmoid, into the gradient in it, over the cap.

    raw, work   (rows, vocabulary)
    aims        the targets, (rows, 1), with some token where one is to be left out
    used        whether a row counts, (rows,)
    """
    sigmoid = raw.sigmoid_()
    p = torch.softmax(torch.mul(sigmoid, _CAP, out=work), 1, out=work)  # above exp(-30) / vocabulary: its log is finite
    losses.copy_(p.gather(1, aims)[:, 0].log().neg_().mul_(used))
    if want_gradient:
        p.scatter_add_(1, aims, p.new_full((len(p), 1), -1.0))
        if not used.all():
            p.mul_(used[:, None])
        torch.ops.aten.sigmoid_backward.grad_input(p, sigmoid, grad_input=raw)  # p * sigmoid * (1 - sigmoid)


@_loss_and_gradients.register_fake
def _(
    features: Tensor, weight: Tensor, targets: Tensor, want_features: bool, want_weight: bool
) -> tuple[Tensor, Tensor, Tensor]:
    gradients = ((features, want_features), (weight, want_weight))
    by_features, by_weight = (torch.empty_like(each) if wanted else each.new_empty(0) for each, wanted in gradients)
    return features.new_empty(()), by_features, by_weight


def _keep_gradients(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[object, ...], output: object) -> None:
    _, by_features, by_weight = output  # type: ignore[misc]
    ctx.mark_non_differentiable(by_features, by_weight)
    ctx.save_for_backward(by_features, by_weight)


def _backward(ctx: torch.autograd.function.BackwardCFunction, by_loss: Tensor, *_: object) -> tuple[Tensor | None, ...]:
    if torch.is_grad_enabled():
        raise RuntimeError(
            "the model's loss has a first derivative only (create_graph=True was given): "
            "for a second one take torch.nn.functional.cross_entropy of the logits, model(tokens)"
        )
    by_features, by_weight = (
        by_loss * each if needed else None
        for each, needed in zip(ctx.saved_tensors, ctx.needs_input_grad[:2], strict=True)
    )
    return by_features, by_weight, None, None, None


_loss_and_gradients.register_autograd(_backward, setup_context=_keep_gradients)
