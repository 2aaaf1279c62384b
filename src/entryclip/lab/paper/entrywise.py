"""The two entry-wise clips that the paper compares, by their short names in rows and figures."""

from collections.abc import Callable
from typing import Any

from ...arrays import Array
from ...operators import hard_clip, smooth_shrinkage

Operator = Callable[[Array, Any], Array]  # (x, threshold) -> x
OPERATORS: dict[str, Operator] = {"hard": hard_clip, "smooth": smooth_shrinkage}
