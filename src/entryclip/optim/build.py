"""One optimizer for a whole model, each parameter with the method and the clip that suit its role.

hidden matrices             the chosen method (muon, adamw or spectra), clipped
embedding tables and heads  AdamW, not clipped
vectors                     AdamW, not clipped, no weight decay

The rules that find the role are in `routing`; `explain` prints what they found.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from torch import Tensor, nn

from ..layout import Layout
from .clip_where import clipped_names, table_clips
from .groups import COMMON, STAGES, Group
from .methods.method import find_method
from .presets import spectra_clip
from .routing import ROLES, Role, Route, check_roles, is_fused, routes
from .staged import Staged

__all__ = ["Route", "build", "explain", "is_fused", "routes"]

_COMMON = ("nonfinite", "fp32_state", "fused", "maximize", "capturable")


def build(
    model: nn.Module,
    method: str = "muon",
    *,
    lr: float | Tensor = 1e-3,
    other_lr: float | Tensor | None = None,
    weight_decay: float = 0.1,
    roles: Mapping[str, Mapping[str, Any]] | None = None,
    patterns: Mapping[str, str] | None = None,
    clip_where: str | Sequence[str] | None = None,
    **options: Any,
) -> Staged:
    """Return one optimizer for all parameters of `model`: hidden matrices by `method`, the rest by AdamW without clips.

    method      "muon" (pre=smooth(.99)), "adamw" (post=smooth(.995)) or "spectra" (soft spectral clip following the lr)
    other_lr    the learning rate of embeddings, head and vectors (default: lr)
    roles       options per role that override these: {"embedding": {"lr": 0.3}, "hidden": {"pre": ec.hard(0.9)}}
    patterns    roles by parameter name, with wildcards: {"*.router.*": "vector"}; they come before all rules
    clip_where  the hidden parameters to clip, by name, by wildcard, or by the name of a matrix inside one, as in
                `probe(...).flagged` (default: all); a pattern that fits no hidden parameter names embeddings and
                heads, which then get the same clip
    options     options of all groups: nonfinite="skip", fp32_state=True, maximize=True, fused=True,
                capturable=True (for CUDA graphs); and those of the methods, for the groups whose method has them:
                betas=(0.9, 0.95) for AdamW's, momentum=0.9 for Muon's

    A classifier's last layer counts as a head if it is named like one (`head`, `classifier`, ...); the last Linear of a
    bare Sequential is a hidden matrix unless `patterns` says otherwise. `print(explain(optimizer))` shows which
    parameter went where and why.

    >>> model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 4), nn.LayerNorm(4))
    >>> print(explain(build(model, "muon", lr=0.02)))
    name      shape   role       method  lr    clip                          why
    1.weight  4 x 4   hidden     muon    0.02  pre smooth_shrinkage(q=0.99)  a matrix of Linear
    0.weight  10 x 4  embedding  adamw   0.02  none                          a table of Embedding
    1.bias    4       vector     adamw   0.02  none                          1 dimension
    2.weight  4       vector     adamw   0.02  none                          1 dimension
    2.bias    4       vector     adamw   0.02  none                          1 dimension
    """
    check_roles(roles or {}, "roles")
    defaults = _defaults(method, lr, lr if other_lr is None else other_lr, weight_decay)
    by_role = _options_by_role(defaults, options, roles or {})
    found = list(routes(model, patterns or {}))
    if not found:
        raise ValueError(f"{type(model).__name__} has no parameters that need a gradient")
    return Staged(_groups(model, found, by_role, clipped_names(found, clip_where)))


def explain(optimizer: Staged) -> str:
    """Return the table of an optimizer made by `build`: the role of every parameter, its options, and why.

    >>> optimizer = build(nn.Linear(2, 3, bias=False), "adamw")
    >>> print(explain(optimizer))
    name    shape  role    method  lr     clip                            why
    weight  3 x 2  hidden  adamw   0.001  post smooth_shrinkage(q=0.995)  a matrix of Linear
    """
    rows = [("name", "shape", "role", "method", "lr", "clip", "why")]
    for group in optimizer.param_groups:
        clips = ", ".join(f"{stage} {group[stage]!r}" for stage in ("grad", "pre", "post") if group[stage] is not None)
        layout = [f"{key}={group[key]}" for key in ("flatten", "transposed", "blocks") if group[key] != COMMON[key]]
        chosen = group["role"], str(group["method"]), f"{float(group['lr']):g}", clips or "none"
        for name, p, why in zip(group["param_names"], group["params"], group["why"], strict=True):
            shape = " x ".join(map(str, p.shape)) or "scalar"
            rows.append((name, shape, *chosen, "; ".join([why, *layout])))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _options_by_role(
    defaults: Mapping[Role, Group], options: Group, roles: Mapping[str, Mapping[str, Any]]
) -> dict[Role, Group]:
    """Return the options of each role: the defaults, those of all groups as far as its method has them, its own."""
    result: dict[Role, Group] = {}
    unused = dict(options)
    for role in ROLES:
        own = {**defaults[role], **roles.get(role, {})}
        known = {*_COMMON, *find_method(own["method"]).options()} - set(STAGES)
        result[role] = {**defaults[role], **{k: v for k, v in options.items() if k in known}, **roles.get(role, {})}
        unused = {k: v for k, v in unused.items() if k not in known}
    if unused:
        name, value = next(iter(unused.items()))
        raise TypeError(
            f"build takes {', '.join(_COMMON)} and the options of the methods for all groups, but no method here has "
            f'{name}; what is for one role goes by its name, as roles={{"hidden": {{"{name}": {value!r}}}}}'
        )
    return result


def _groups(model: nn.Module, found: Sequence[Route], options: Mapping[Role, Group], clipped: set[str]) -> list[Group]:
    """Return one param group for all parameters of the same role, layout and clip, ordered by role."""
    parameters = dict(model.named_parameters())
    groups: dict[tuple[Role, Layout, bool], Group] = {}
    for route in found:
        own, chosen, clips = options[route.role], route.name in clipped, {}
        if route.role == "hidden" and not chosen:
            clips = dict.fromkeys(STAGES)
        elif route.role != "hidden" and chosen:
            clips = table_clips(route.name, own, options["hidden"])
        start = {**own, **asdict(route.layout), **clips, "role": route.role, "params": [], "why": []}
        group = groups.setdefault((route.role, route.layout, chosen), start)
        group["params"].append((route.name, parameters[route.name]))
        group["why"].append(route.why)
    return sorted(groups.values(), key=lambda group: ROLES.index(group["role"]))


def _defaults(method: str, lr: float | Tensor, other_lr: float | Tensor, weight_decay: float) -> dict[Role, Group]:
    """Return the options of each role before the user's own."""
    rest = {"method": "adamw", "lr": other_lr, "post": None, "weight_decay": weight_decay}
    return {
        "hidden": {**_method_options(method, lr), "lr": lr, "weight_decay": weight_decay},
        "embedding": rest,
        "head": rest,
        "vector": {**rest, "weight_decay": 0.0},
    }


def _method_options(method: str, lr: float | Tensor) -> Group:
    """Return the options of the chosen method; the paper's clips are the defaults of Muon and AdamW already."""
    if method in ("muon", "adamw"):
        return {"method": method}
    if method == "spectra":
        return {"method": "adamw", "post": spectra_clip(lr)}
    raise ValueError(f"method must be one of muon, adamw, spectra, got {method!r}")
