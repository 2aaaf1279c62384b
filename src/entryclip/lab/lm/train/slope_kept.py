"""Smooth shrinkage whose output is divided by its mean slope, so that a small signal passes at its own size.

    f_c(x) / mean over entries of f_c'(x),    f_c(x) = x exp(-|x|/c),    f_c'(x) = (1 - |x|/c) exp(-|x|/c)

Smooth shrinkage makes small entries smaller too, which acts like a smaller learning rate. Its own remedy,
`preserve_rms`, keeps the size of the whole update, noise included; `auto()` keeps the slope, and so does this operator
at a quantile that is given. It is a control: what is left of a gain at the step size that AdamW has without a clip?

Where all entries are of one size, as in Adam's first update, all lie near the threshold, where f_c is flat, and the
mean slope says nothing of small entries. So it counts as at least `LEAST`: no output is larger than c / (e LEAST).
"""

import torch
from torch import Tensor

from ....clip import Clip
from ....operators import smooth_shrinkage
from ....thresholds import Quantile

LEAST = 0.4  # about that of Gaussian entries at their .9-quantile, .41; at higher quantiles they have more


def smooth_shrinkage_slope_kept(x: Tensor, c: Tensor) -> Tensor:
    """Shrink each matrix of `x`, (..., m, n), at thresholds (..., 1, 1), and divide it by its mean slope.

    >>> x = torch.tensor([[0.001, -0.002], [0.003, 0.001]])
    >>> (smooth_shrinkage_slope_kept(x, torch.tensor([[1.0]])) / x).round(decimals=2)
    tensor([[1., 1.],
            [1., 1.]])
    """
    ratio = (x.abs() / c).nan_to_num(posinf=torch.finfo(x.dtype).max)  # 0/0 where an entry and the threshold are 0
    decay = torch.exp(-ratio)
    slope = torch.where(decay > 0, (1 - ratio) * decay, 0.0).mean((-2, -1), keepdim=True)
    return smooth_shrinkage(x, c) / slope.clamp(min=LEAST)


def smooth_slope_kept(q: float) -> Clip:
    """Return smooth shrinkage at the q-quantile of |x| with its slope kept.

    >>> smooth_slope_kept(0.995)
    smooth_shrinkage_slope_kept(q=0.995)
    """
    return Clip(smooth_shrinkage_slope_kept, Quantile(q))
