"""Which matrices of a model to look at, and what they are called.

A parameter holds one matrix or several: leading dimensions are a batch (experts), a convolution is one matrix (out,
rest), a fused weight is cut into its parts, all as the optimizers cut it. `blocks.10.attn.qkv_w.v` is one of three;
`blocks.10.attn.qkv_w.v.head2` some of its rows, where the module says how many heads it has.
"""

import difflib
import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from torch import Tensor, nn

from ..layout import Layout
from ..optim.routing import is_fused, routes

_HEADS = ("heads", "num_heads", "n_head", "n_heads", "num_attention_heads")


@dataclass(frozen=True, eq=False)
class Matrix:
    """One matrix inside a parameter."""

    name: str
    parameter: str  # its name in the model
    shape: tuple[int, int]
    layout: Layout = field(repr=False)
    index: tuple[int, ...] = ()  # in the batch
    first: int = 0  # row, of a part of its rows

    def of(self, x: Tensor) -> Tensor:
        """This matrix in a tensor of the parameter's shape."""
        return self.layout.matrices(x)[self.index][self.first : self.first + self.shape[0]]


@dataclass(frozen=True)
class Selection:
    """The matrices to look at, and why others of the model are not among them."""

    matrices: tuple[Matrix, ...]
    left_out: dict[str, str]

    @property
    def parameters(self) -> list[str]:
        """The names of the parameters that hold them."""
        return list(dict.fromkeys(matrix.parameter for matrix in self.matrices))


def select(model: nn.Module, where: str | Sequence[str] | None = None) -> Selection:
    """The hidden matrices of a model; or, embeddings and heads too, those whose name or parameter matches a pattern.

    >>> model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.Conv2d(4, 2, 3), nn.Linear(4, 4))
    >>> _ = model[3].requires_grad_(False)
    >>> chosen = select(model)
    >>> [(matrix.name, matrix.shape) for matrix in chosen.matrices]
    [('1.weight', (4, 4)), ('2.weight', (2, 36))]
    >>> chosen.left_out
    {'0.weight': 'a table of Embedding: ask for it by name', '3.weight': 'frozen: it needs no gradient'}
    >>> [matrix.name for matrix in select(model, "0.*").matrices]
    ['0.weight']
    """
    patterns = [where] if isinstance(where, str) else where
    found: list[Matrix] = []
    left_out: dict[str, str] = {}
    known: list[str] = []
    for route in routes(model, {}):
        if route.role == "vector":
            continue
        matrices = _matrices(model, route.name, route.shape, route.layout)
        known += [matrix.name for matrix in matrices]
        if patterns is not None:
            found += _matching(matrices, patterns, model)
        elif route.role == "hidden":
            found += matrices
        else:
            left_out[_plain(route.name)] = f"{route.why}: ask for it by name"
    frozen = [name for name, p in model.named_parameters() if not p.requires_grad and p.ndim >= 2]
    left_out |= {_plain(name): "frozen: it needs no gradient" for name in frozen}
    if not found:
        raise ValueError(_nothing(model, patterns, known, len(frozen)))
    return Selection(tuple(found), left_out)


def _matrices(model: nn.Module, name: str, shape: tuple[int, ...], layout: Layout) -> list[Matrix]:
    *batch, rows, columns = layout.shape(model.get_parameter(name).shape)
    parts = "qkv" if batch == [3] and is_fused(name) else None
    return [
        Matrix(_joined(_plain(name), index, parts), name, (rows, columns), layout, index)
        for index in np.ndindex(*batch)
        if min(rows, columns) > 1
    ]


def _joined(name: str, index: tuple[int, ...], parts: str | None) -> str:
    return ".".join([name, *(parts[i] if parts else str(i) for i in index)])


def _matching(matrices: list[Matrix], patterns: Sequence[str], model: nn.Module) -> list[Matrix]:
    """Those that a pattern names; single heads only where its last part begins with `head`."""
    found = []
    for matrix in matrices:
        for pattern in patterns:
            if pattern.rpartition(".")[2].startswith("head") and not matrix.name.endswith(pattern.rpartition(".")[2]):
                found += [head for head in _heads(matrix, model) if fnmatch.fnmatchcase(head.name, pattern)]
            elif fnmatch.fnmatchcase(matrix.name, pattern) or fnmatch.fnmatchcase(_plain(matrix.parameter), pattern):
                found.append(matrix)
    return list({matrix.name: matrix for matrix in found}.values())


def _heads(matrix: Matrix, model: nn.Module) -> list[Matrix]:
    """Its rows in as many parts as the module, or the one around it, has heads; none where that does not go."""
    owner = matrix.parameter.rpartition(".")[0]
    modules = model.get_submodule(owner), model.get_submodule(owner.rpartition(".")[0])
    counts = [getattr(module, name) for module in modules for name in _HEADS if hasattr(module, name)]
    if not counts or not isinstance(counts[0], int) or counts[0] < 1 or matrix.shape[0] % counts[0]:
        return []
    size = matrix.shape[0] // counts[0]
    return [
        replace(matrix, name=f"{matrix.name}.head{i}", shape=(size, matrix.shape[1]), first=i * size)
        for i in range(counts[0])
    ]


def _plain(name: str) -> str:
    """Without torch.compile's wrapping."""
    return name.replace("_orig_mod.", "")


def _nothing(model: nn.Module, patterns: Sequence[str] | None, known: list[str], frozen: int) -> str:
    if patterns is None:
        also = f" ({frozen} matrices are frozen)" if frozen else ""
        return f"{type(model).__name__} has no hidden matrix that needs a gradient{also}: name others in where"
    near = difflib.get_close_matches(str(patterns[0]) if patterns else "", known, 3, 0.0)
    return f"where matches no matrix, got {patterns!r}: there are {len(known)}, such as {', '.join(near) or 'none'}"
