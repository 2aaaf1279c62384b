"""Which parameter goes where, and why: one optimizer for a whole model.

hidden      matrices inside the network, convolutions and expert weights among them: the method's own, clipped
embedding   tables that are looked up, also where the head is tied to them: AdamW, not clipped
head        the last map, to the vocabulary or the classes: AdamW, not clipped
vector      biases, gains, scalars: AdamW, not clipped, no decay
"""

import difflib
import fnmatch
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from torch import Tensor, nn

from ..layout import PLAIN, Layout
from .presets import spectra_clip
from .staged import Staged

_COMMON = ("nonfinite", "fp32_state", "fused", "maximize")
ROLES = ("hidden", "embedding", "head", "vector")
_HEADS = re.compile(r"(^|\.)(lm_head|head|classifier|score|unembed|output_projection)$")
_TABLES = re.compile(r"(^|[._])(pos|position|cls|embed|embedding|embeddings|wte|wpe)($|[._])|(cls|mask)_token$")
_FUSED = re.compile(r"(qkv|c_attn|in_proj|query_key_value)")


class Route(NamedTuple):
    """Where one parameter goes."""

    name: str
    shape: tuple[int, ...]
    role: str
    why: str
    layout: Layout


def build(
    model: nn.Module,
    method: str = "muon",
    *,
    lr: float = 1e-3,
    other_lr: float | None = None,
    weight_decay: float = 0.1,
    roles: Mapping[str, Mapping[str, Any]] | None = None,
    patterns: Mapping[str, str] | None = None,
    clip_where: str | Sequence[str] | None = None,
    **common: Any,
) -> Staged:
    """One optimizer for all parameters of `model`: hidden matrices by `method`, the rest by AdamW without clips.

    method      "muon" (pre=smooth(.99)), "adamw" (post=smooth(.995)) or "spectra" (soft spectral clip following the lr)
    other_lr    the learning rate of embeddings, head and vectors (default: lr)
    roles       options per role that override these: {"embedding": {"lr": 0.3}, "hidden": {"pre": ec.hard(0.9)}}
    patterns    roles by name, with wildcards: {"*.router.*": "vector"}; they come first
    clip_where  the hidden matrices that are clipped, by name or with wildcards, such as `probe(...).flagged`: a
                parameter is if one of its matrices is named (default: all)
    common      options of all groups: nonfinite="skip", fp32_state=True, maximize=True, fused=True (for AdamW's)

    `print(explain(optimizer))` shows which parameter went where and why.

    >>> model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 4), nn.LayerNorm(4))
    >>> print(explain(build(model, "muon", lr=0.02)))
    name      shape   role       method  lr    clip                          why
    1.weight  4 x 4   hidden     muon    0.02  pre smooth_shrinkage(q=0.99)  a matrix of Linear
    0.weight  10 x 4  embedding  adamw   0.02  none                          a table of Embedding
    1.bias    4       vector     adamw   0.02  none                          1 dimension
    2.weight  4       vector     adamw   0.02  none                          1 dimension
    2.bias    4       vector     adamw   0.02  none                          1 dimension
    """
    own = _own_options(method, lr)
    _check_roles(roles or {}, "roles")
    if unknown := set(common) - set(_COMMON):
        raise TypeError(f"build takes {', '.join(_COMMON)} for all groups and the rest by role, got {sorted(unknown)}")
    rest = {"method": "adamw", "lr": lr if other_lr is None else other_lr, "post": None, "weight_decay": weight_decay}
    defaults: dict[str, dict[str, Any]] = {
        "hidden": {**own, "lr": lr, "weight_decay": weight_decay},
        "embedding": rest,
        "head": rest,
        "vector": {**rest, "weight_decay": 0.0},
    }
    parameters = dict(model.named_parameters())
    groups: dict[Any, dict[str, Any]] = {}
    found = list(routes(model, patterns or {}))
    calm = _not_clipped(found, clip_where)
    for route in found:
        key = (route.role, route.layout, route.name in calm)
        options = {**defaults[route.role], **common, **(roles or {}).get(route.role, {}), **asdict(route.layout)}
        options |= {"grad": None, "pre": None, "post": None} if route.name in calm else {}
        group = groups.setdefault(key, {**options, "role": route.role, "params": [], "why": []})
        group["params"].append((route.name, parameters[route.name]))
        group["why"].append(route.why)
    if not groups:
        raise ValueError(f"{type(model).__name__} has no parameters that need a gradient")
    return Staged(sorted(groups.values(), key=lambda group: ROLES.index(group["role"])))


def routes(model: nn.Module, patterns: Mapping[str, str]) -> Iterator[Route]:
    """A route for every parameter that needs a gradient, once each, in the model's order."""
    _check_roles(patterns.values(), "patterns")
    users: dict[Tensor, list[tuple[str, nn.Module]]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        for name, p in module.named_parameters(recurse=False):
            users.setdefault(p, []).append((f"{path}.{name}".lstrip("."), module))
    vocabularies = {m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)}
    for name, p in model.named_parameters():
        if p.requires_grad:
            role, why = _role(name, p, users[p], vocabularies, patterns)
            yield Route(
                name, tuple(p.shape), role, why, _layout(name, p, users[p][0][1]) if role == "hidden" else PLAIN
            )


def _not_clipped(found: Sequence[Route], where: str | Sequence[str] | None) -> set[str]:
    """The hidden parameters that no pattern names, neither themselves nor a matrix inside them."""
    if where is None:
        return set()
    hidden = {route.name for route in found if route.role == "hidden"}
    patterns = [where] if isinstance(where, str) else list(where)
    named = {pattern: {n for n in hidden if _names(pattern, n)} for pattern in patterns}
    if unknown := [pattern for pattern, names in named.items() if not names]:
        near = difflib.get_close_matches(unknown[0], hidden, 3, 0.0)
        raise ValueError(f"clip_where names no hidden matrix by {unknown[0]!r}: there are {', '.join(near) or 'none'}")
    return hidden.difference(*named.values())


def _names(pattern: str, parameter: str) -> bool:
    return fnmatch.fnmatchcase(parameter, pattern) or pattern.startswith(f"{parameter}.")


def _role(
    name: str, p: Tensor, users: list[tuple[str, nn.Module]], vocabularies: set[int], patterns: Mapping[str, str]
) -> tuple[str, str]:
    for pattern, role in patterns.items():
        if fnmatch.fnmatchcase(name, pattern):
            return role, f"matches {pattern}"
    if p.ndim < 2:
        return "vector", f"{p.ndim} dimension{'s' if p.ndim != 1 else ''}"
    tables = [module for _, module in users if isinstance(module, nn.Embedding | nn.EmbeddingBag)]
    if tables:
        others = [other for other, module in users if module not in tables]
        tied = f", tied to {', '.join(others)}" if others else ""
        return "embedding", f"a table of {type(tables[0]).__name__}{tied}"
    if 1 in p.shape[-2:]:
        return "vector", "a vector in the shape of a matrix"
    module = users[0][1]
    path = name.rpartition(".")[0]
    if isinstance(module, nn.Linear) and (_HEADS.search(path) or module.out_features in vocabularies):
        return "head", "maps to the vocabulary" if module.out_features in vocabularies else f"is called {path}"
    if not name.endswith("weight") and _TABLES.search(name):
        return "embedding", "a bare parameter with the name of a table"
    what = "a matrix" if p.ndim == 2 or isinstance(module, nn.modules.conv._ConvNd) else "a batch of matrices"
    return "hidden", f"{what} of {type(module).__name__}"


def _layout(name: str, p: Tensor, module: nn.Module) -> Layout:
    """How the matrices lie in a hidden parameter, from the module's type and the name."""
    flatten = isinstance(module, nn.modules.conv._ConvNd)
    transposed = type(module).__name__ == "Conv1D"  # Hugging Face's: a Linear stored as (in, out)
    rows, columns = (p.shape[1], p.shape[0]) if transposed else (p.shape[0], p.shape[-1])
    fused = p.ndim == 2 and is_fused(name) and rows == 3 * columns
    return Layout(flatten, transposed, blocks=3 if fused else 1)


def is_fused(name: str) -> bool:
    """Whether a parameter of this name holds queries, keys and values.

    >>> is_fused("blocks.0.attn.qkv_w"), is_fused("blocks.0.attn.c_proj.weight")
    (True, False)
    """
    return _FUSED.search(name) is not None


def _own_options(method: str, lr: float) -> dict[str, Any]:
    """Muon's and AdamW's own defaults hold the paper's clips already."""
    if method in ("muon", "adamw"):
        return {"method": method}
    if method == "spectra":
        return {"method": "adamw", "post": spectra_clip(lr)}
    raise ValueError(f"method must be one of muon, adamw, spectra, got {method!r}")


def _check_roles(given: Iterable[str], what: str) -> None:
    for role in given:
        if role not in ROLES:
            raise ValueError(f"{what} name one of {', '.join(ROLES)}, got {role!r}")


def explain(optimizer: Staged) -> str:
    """The table of an optimizer made by `build`: which parameter went where, and why."""
    rows = [("name", "shape", "role", "method", "lr", "clip", "why")]
    for group in optimizer.param_groups:
        clips = [f"{stage} {group[stage]!r}" for stage in ("grad", "pre", "post") if group[stage] is not None]
        layout = [f"{key}={group[key]}" for key in ("flatten", "transposed", "blocks") if group[key] not in (False, 1)]
        for name, p, why in zip(group["param_names"], group["params"], group["why"], strict=True):
            shape = " x ".join(map(str, p.shape)) or "scalar"
            detail = "; ".join([why, *layout])
            rows.append(
                (
                    name,
                    shape,
                    group["role"],
                    str(group["method"]),
                    f"{float(group['lr']):g}",
                    ", ".join(clips) or "none",
                    detail,
                )
            )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
