"""Names of parameters for reports and errors, where the param groups of an optimizer have none."""

from typing import Any

from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

_NAMES: Any = WeakIdKeyDictionary()  # of parameters, by identity; it does not keep them alive


def name_parameters(model: nn.Module) -> None:
    """Let every report and error call the parameters of `model` by their names, whichever optimizer holds them.

    An optimizer that `build` made, or that got `model.named_parameters()`, knows the names already. This is for param
    groups made by hand. It may be called before or after the optimizer is made. A copy of the model needs a call of its
    own. Of a parameter with several names, the first counts.

    >>> import torch
    >>> import entryclip as ec
    >>> model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    >>> optimizer = ec.optim.SGD([{"params": [model[1].weight], "post": ec.hard(0.5)}])
    >>> name_parameters(model)
    >>> model[1].weight.grad = torch.ones(4, 4)
    >>> optimizer.clip_report()[0].name
    '1.weight'
    """
    for name, p in model.named_parameters():
        _NAMES[p] = name


def given_name(p: Tensor) -> str | None:
    """Return the name that `name_parameters` gave a parameter."""
    name: str | None = _NAMES.get(p)
    return name
