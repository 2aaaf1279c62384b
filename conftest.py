"""Modules whose optional packages are missing are not collected for doctests."""

import importlib.util

KERNELS = "src/entryclip/optim/kernels"
collect_ignore = (
    []
    if importlib.util.find_spec("triton")
    else [f"{KERNELS}/{name}.py" for name in ("gpu", "triton_kernels", "triton_search")]
)
