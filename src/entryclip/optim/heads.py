"""Find the output heads of a model: the linear maps from features to token logits or to classes.

A head is a Linear that is named like one (`lm_head`, `classifier`, ...). If none of these maps to the token vocabulary,
it is the Linear outside the repeated blocks that does, and that has a likely name or is the last matrix of the model.

The size alone does not tell: hidden layers have as many outputs as the vocabulary where the two sizes coincide. A table
of positions or segments is no vocabulary, else every hidden layer of a transformer whose width equals its context
length would map to one.
"""

import re
from collections.abc import Iterator

from torch import Tensor, nn

TABLES = (nn.Embedding, nn.EmbeddingBag)

_NAME = re.compile(r"(^|\.)(lm_heads?|head|classifier|score|unembed|output_projection)$")
_LIKELY_NAME = re.compile(
    r"(^|\.)(out|output|out_proj|proj_out|logits|to_logits|embed_out|decoder|generator|readout|unembedding)$"
)  # hidden layers are called so too, hence these count only for a map to the vocabulary
_NOT_TOKENS = re.compile(r"(^|[._])(wpe|pos[a-z]*|types?|segments?|relative|time|timesteps?)($|[._])")
_NUMBERED = re.compile(r"\d$")
_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def find_heads(model: nn.Module) -> dict[Tensor, str]:
    """Return the weights of the model's heads, each with the reason why it is one.

    A head that shares its weight with the token table is not among them: that weight is a table.

    >>> model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 8), nn.Linear(8, 10))
    >>> list(find_heads(model).values())
    ['maps to the vocabulary']
    """
    modules = [(_unwrapped(path), module) for path, module in model.named_modules()]
    tables = {module.weight for _, module in modules if isinstance(module, TABLES)}
    linears = {path: m for path, m in modules if isinstance(m, nn.Linear) and m.weight not in tables}
    named = {linears[path].weight: f"is called {name}" for path, name in _named(modules) if path in linears}
    blocks = tuple(f"{path}." for path in _blocks(model))
    sizes = _untied_vocabularies(modules, blocks)
    to_tokens = {
        path: linear.weight
        for path, linear in linears.items()
        if linear.out_features in sizes and not path.startswith(blocks)
    }
    chosen = [weight for weight in to_tokens.values() if weight in named] or _likely(to_tokens, model)
    return named | dict.fromkeys(chosen, "maps to the vocabulary")


def _likely(to_tokens: dict[str, Tensor], model: nn.Module) -> list[Tensor]:
    """Return the weights of the maps to the vocabulary that have a likely name, else the model's last matrix."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    by_name = [weight for path, weight in to_tokens.items() if _LIKELY_NAME.search(path)]
    return by_name or [weight for weight in to_tokens.values() if weight is matrices[-1]]


def _named(modules: list[tuple[str, nn.Module]]) -> Iterator[tuple[str, str]]:
    """Yield (path of a Linear, the head's name) for modules that are named like heads.

    In a Sequential only the last Linear is the head, in a ModuleList each one is a head of its own.
    """
    for path, module in modules:
        if not _NAME.search(path):
            continue
        if isinstance(module, nn.Linear):
            yield path, path
        inner = [f"{path}.{name}" for name, child in module.named_children() if isinstance(child, nn.Linear)]
        if isinstance(module, nn.ModuleList | nn.Sequential):
            for each in inner[-1:] if isinstance(module, nn.Sequential) else inner:
                yield each, path


def _untied_vocabularies(modules: list[tuple[str, nn.Module]], blocks: tuple[str, ...]) -> set[int]:
    """Return the sizes of the token tables, without those whose table itself is the weight of a head."""
    shared = {module.weight for _, module in modules if isinstance(module, nn.Linear)}
    tables = [(path, module) for path, module in modules if isinstance(module, TABLES) and not path.startswith(blocks)]
    tied = {table.num_embeddings for _, table in tables if table.weight in shared}
    return {table.num_embeddings for path, table in tables if not _NOT_TOKENS.search(path)} - tied


def _blocks(module: nn.Module, path: str = "") -> Iterator[str]:
    """Yield the paths of the repeated blocks: modules of several layers that stand in a row of such modules."""
    for name, child in module.named_children():
        if not any(child.children()):
            continue
        inside = f"{path}.{name}" if path else name
        if _is_block(module, name, child):
            yield _unwrapped(inside)
        else:
            yield from _blocks(child, inside)


def _is_block(parent: nn.Module, name: str, child: nn.Module) -> bool:
    """Tell whether `child` is one of several alike, or the only one of a list that could hold several."""
    if isinstance(parent, nn.ModuleList):
        return True
    if not isinstance(parent, _CONTAINERS) and not _NUMBERED.search(name):
        return False
    others = [other for key, other in parent.named_children() if key != name]
    alone = not any(map(_shapes, others)) and name.isdigit() and not isinstance(child, _CONTAINERS)
    return alone or any(type(other) is type(child) and _shapes(other) == _shapes(child) for other in others)


def _shapes(module: nn.Module) -> list[tuple[str, tuple[int, ...]]]:
    """Return the names and shapes of a module's matrices."""
    return [(name, tuple(p.shape)) for name, p in module.named_parameters() if p.ndim >= 2]


def _unwrapped(path: str) -> str:
    """Return the path without the names that torch.compile and activation checkpointing put in."""
    return re.sub(r"(^|\.)(_orig_mod|_checkpoint_wrapped_module)(?=\.|$)", "", path).removeprefix(".")
