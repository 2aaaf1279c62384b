"""Which parameters `build(clip_where=...)` clips: hidden matrices by default, embeddings and heads where named."""

import difflib
import fnmatch
from collections.abc import Sequence

from .groups import STAGES, Group
from .methods.method import find_method
from .routing import Role, Route

_TABLES: tuple[Role, ...] = ("embedding", "head")


def clipped_names(found: Sequence[Route], where: str | Sequence[str] | None) -> set[str]:
    """Return the names of the parameters to clip: all hidden ones, or those that the patterns in `where` name.

    A pattern names hidden matrices, or a matrix inside one as `parameter.part`. Only a pattern that fits no hidden
    matrix names embeddings and heads: so `*` leaves the tables alone, and `embed*` clips them.
    """
    hidden = [route.name for route in found if route.role == "hidden"]
    if where is None:
        return set(hidden)
    tables = [route.name for route in found if route.role in _TABLES]
    names: set[str] = set()
    for pattern in [where] if isinstance(where, str) else where:
        named = _named(pattern, hidden) or _named(pattern, tables)
        if not named:
            choices = [*difflib.get_close_matches(pattern, hidden, 3, 0.0), *tables]
            raise ValueError(
                f"clip_where names no hidden matrix, embedding or head by {pattern!r}: there are "
                f"{', '.join(choices) or 'none'}{', ...' if len(hidden) > 3 else ''}"
            )
        names |= named
    return names


def table_clips(name: str, own: Group, hidden: Group) -> Group:
    """Return the clips of a named embedding or head: those of the hidden matrices, at stages where it has none.

    name    the parameter, for messages
    own     the options of its role
    hidden  the options of hidden matrices; a clip that these do not mention is their method's default
    """
    method, clips = find_method(own["method"]), {**find_method(hidden["method"]).options(), **hidden}
    if clips.get("pre") is not None and not method.has_sign:
        raise ValueError(
            f"clip_where names {name}, which {own['method']} trains, but the clip acts at the stage pre, before a "
            f"matrix sign that {own['method']} has not: clip at the stage grad or post, or leave {name} out"
        )
    return {stage: clips.get(stage) for stage in STAGES if own.get(stage) is None}


def _named(pattern: str, names: Sequence[str]) -> set[str]:
    """Return the names of parameters that a pattern fits, or inside which it names a matrix."""
    return {name for name in names if fnmatch.fnmatchcase(name, pattern) or pattern.startswith(f"{name}.")}
