"""Modules whose optional packages are missing are not collected for doctests."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("triton") else ["src/entryclip/*/gpu.py", "src/*/triton_*.py"]
