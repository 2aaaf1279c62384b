"""Rules that give every parameter of a model its role.

hidden      a matrix inside the network; convolutions and the weights of experts are among them
embedding   a table that is looked up by index, also where the head shares it
head        the linear map from features to token logits or to classes
vector      a bias, a gain, a scalar, or a matrix with a side of length 1
"""

import fnmatch
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast, get_args

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from ..layout import PLAIN, Layout
from .heads import TABLES, find_heads

Role = Literal["hidden", "embedding", "head", "vector"]
ROLES: tuple[Role, ...] = get_args(Role)

_TABLE_NAME = re.compile(r"(^|[._])(pos|position|cls|embed|embedding|embeddings|wte|wpe)($|[._])|(cls|mask)_token$")
_FUSED = re.compile(r"(qkv|c_attn|in_proj|query_key_value)")


class Route(NamedTuple):
    """The role of one parameter, the rule that gave it, and the layout of the parameter's matrices."""

    name: str
    shape: tuple[int, ...]
    role: Role
    why: str
    layout: Layout


def routes(model: nn.Module, patterns: Mapping[str, str]) -> Iterator[Route]:
    """Yield the route of every parameter that needs a gradient, once each, in the model's order.

    patterns    roles by parameter name, with wildcards; they come before all rules

    >>> model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 8), nn.Linear(8, 10, bias=False))
    >>> for route in routes(model, {}):
    ...     print(f"{route.name}: {route.role}, {route.why}")
    0.weight: embedding, a table of Embedding
    1.weight: hidden, a matrix of Linear
    1.bias: vector, 1 dimension
    2.weight: head, maps to the vocabulary
    """
    check_roles(patterns.values(), "patterns")
    holders = _holders(model)
    heads = find_heads(model)
    for name, p in model.named_parameters():
        if p.requires_grad:
            layout = _layout(name, p, holders[p][0].module)
            role, why = _by_pattern(name, patterns) or _role(name, p, layout, holders[p], heads.get(p))
            yield Route(name, tuple(p.shape), role, why, layout if role == "hidden" else PLAIN)


def is_fused(name: str) -> bool:
    """Tell whether a parameter of this name holds queries, keys and values.

    >>> is_fused("blocks.0.attn.qkv_w"), is_fused("blocks.0.attn.c_proj.weight")
    (True, False)
    """
    return _FUSED.search(name) is not None


def check_roles(given: Iterable[str], argument: str) -> None:
    """Raise a ValueError where `argument` names a role that does not exist."""
    for role in given:
        if role not in ROLES:
            raise ValueError(f"{argument} name one of {', '.join(ROLES)}, got {role!r}")


@dataclass(frozen=True)
class _Holder:
    """A module that holds a parameter, and the parameter's name there; a tied parameter has several."""

    name: str
    module: nn.Module


def _holders(model: nn.Module) -> dict[Tensor, list[_Holder]]:
    holders: dict[Tensor, list[_Holder]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        for name, p in module.named_parameters(recurse=False):
            holders.setdefault(p, []).append(_Holder(f"{path}.{name}".lstrip("."), module))
    return holders


def _by_pattern(name: str, patterns: Mapping[str, str]) -> tuple[Role, str] | None:
    """Return the role of the first pattern that matches."""
    for pattern, given in patterns.items():
        if fnmatch.fnmatchcase(name, pattern):
            return cast(Role, given), f"matches {pattern}"  # `check_roles` has seen it
    return None


def _role(name: str, p: Tensor, layout: Layout, holders: list[_Holder], head: str | None) -> tuple[Role, str]:
    """Return the role of a parameter and why; `head` is the reason to call it a head, if there is one."""
    if p.ndim < 2:
        return "vector", f"{p.ndim} dimension{'s' if p.ndim != 1 else ''}"
    if tables := [holder for holder in holders if isinstance(holder.module, TABLES)]:
        others = [holder.name for holder in holders if holder not in tables]
        tied = f", tied to {', '.join(others)}" if others else ""
        return "embedding", f"a table of {type(tables[0].module).__name__}{tied}"
    if 1 in layout.shape(tuple(p.shape))[-2:]:
        return "vector", "a vector in the shape of a matrix"
    if head:
        return "head", head
    if not name.endswith("weight") and _TABLE_NAME.search(name):
        return "embedding", "a bare parameter with the name of a table"
    module = holders[0].module
    what = "a matrix" if p.ndim == 2 or isinstance(module, _ConvNd) else "a batch of matrices"
    return "hidden", f"{what} of {type(module).__name__}"


def _layout(name: str, p: Tensor, module: nn.Module) -> Layout:
    """Return how the matrices lie in a hidden parameter, from the module's type and the parameter's name."""
    if isinstance(module, _ConvNd):  # the weight is (out, in, ...), that of a transposed convolution (in, out, ...)
        return Layout(flatten=True, transposed=isinstance(module, _ConvTransposeNd))
    if p.ndim != 2:
        return PLAIN
    transposed = _is_hugging_face_conv1d(module)
    rows, columns = reversed(p.shape) if transposed else p.shape
    return Layout(transposed=transposed, blocks=3 if is_fused(name) and rows == 3 * columns else 1)


def _is_hugging_face_conv1d(module: nn.Module) -> bool:
    """Tell whether the module is transformers' `Conv1D`, a Linear whose weight is stored as (in, out).

    Where transformers is not loaded no module can be one.
    """
    loaded = sys.modules.get("transformers.pytorch_utils")
    return loaded is not None and isinstance(module, loaded.Conv1D)
