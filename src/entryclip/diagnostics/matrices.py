"""The named matrices of a model, and their selection by patterns.

A parameter holds one matrix or several: leading dimensions are a batch (experts), a convolution is one matrix (out,
rest), a fused weight is cut into blocks, all as the optimizers cut it. `blocks.10.attn.qkv_w.v` is one of three such
blocks; `blocks.10.attn.qkv_w.v.head2` are the rows of one head, where the module says how many heads it has.
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
class NamedMatrix:
    """One matrix inside a parameter of a model."""

    name: str
    parameter: str  # its name in the model
    shape: tuple[int, int]
    layout: Layout = field(repr=False)
    index: tuple[int, ...] = ()  # its position in the parameter's batch of matrices
    first: int = 0  # its first row there, for one head of a matrix

    def of(self, x: Tensor) -> Tensor:
        """Return a view of this matrix, (m, n), in `x`, a tensor of the parameter's shape."""
        return self.layout.matrices(x)[self.index][self.first : self.first + self.shape[0]]

    def place(self, entry: tuple[int, int], shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the index in the parameter, of this shape, of the entry (row, column) of this matrix."""
        row, column = entry
        return self.layout.locate((*self.index, self.first + row, column), shape)


@dataclass(frozen=True)
class Selection:
    """The selected matrices of a model, and the reason for each one that is left out."""

    matrices: tuple[NamedMatrix, ...]
    left_out: dict[str, str]

    @property
    def parameters(self) -> list[str]:
        """The names of the parameters that hold the selected matrices, each once."""
        return list(dict.fromkeys(matrix.parameter for matrix in self.matrices))


def select(model: nn.Module, where: str | Sequence[str] | None = None) -> Selection:
    """Select the hidden matrices of a model; with `where`, all whose own or parameter's name matches a pattern.

    Patterns have wildcards, as "blocks.*.attn.qkv_w.v", and reach embeddings and heads too.

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
    found: list[NamedMatrix] = []
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
        raise ValueError(_nothing_found(model, patterns, known, len(frozen)))
    return Selection(tuple(found), left_out)


def _matrices(model: nn.Module, name: str, shape: tuple[int, ...], layout: Layout) -> list[NamedMatrix]:
    """Return the matrices of one parameter; single rows and columns are left out."""
    *batch, rows, columns = layout.shape(model.get_parameter(name).shape)
    parts = "qkv" if batch == [3] and is_fused(name) else None
    return [
        NamedMatrix(_joined(_plain(name), index, parts), name, (rows, columns), layout, index)
        for index in np.ndindex(*batch)
        if min(rows, columns) > 1
    ]


def _joined(name: str, index: tuple[int, ...], parts: str | None) -> str:
    return ".".join([name, *(parts[i] if parts else str(i) for i in index)])


def _matching(matrices: list[NamedMatrix], patterns: Sequence[str], model: nn.Module) -> list[NamedMatrix]:
    """Return the matrices that a pattern names; single heads only where its last part begins with `head`."""
    found = []
    for matrix in matrices:
        for pattern in patterns:
            if pattern.rpartition(".")[2].startswith("head") and not matrix.name.endswith(pattern.rpartition(".")[2]):
                found += [head for head in _heads(matrix, model) if fnmatch.fnmatchcase(head.name, pattern)]
            elif fnmatch.fnmatchcase(matrix.name, pattern) or fnmatch.fnmatchcase(_plain(matrix.parameter), pattern):
                found.append(matrix)
    return list({matrix.name: matrix for matrix in found}.values())


def _heads(matrix: NamedMatrix, model: nn.Module) -> list[NamedMatrix]:
    """Cut the rows into heads, as many as the owning module or its parent has; none where the count does not divide."""
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
    """Remove the prefix that torch.compile adds to names."""
    return name.replace("_orig_mod.", "")


def _nothing_found(model: nn.Module, patterns: Sequence[str] | None, known: list[str], frozen: int) -> str:
    if patterns is None:
        also = f" ({frozen} matrices are frozen)" if frozen else ""
        return f"{type(model).__name__} has no hidden matrix that needs a gradient{also}: name others in where"
    near = difflib.get_close_matches(str(patterns[0]) if patterns else "", known, 3, 0.0)
    return f"where matches no matrix, got {patterns!r}: there are {len(known)}, such as {', '.join(near) or 'none'}"
