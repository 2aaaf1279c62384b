"""Colours of the studies' figures. The engine's `COLOURS`, by operator, are among them."""

RED = "#c8352b"
BLUE = "#1f5fa8"
GREEN = "#2f8f5b"
ORANGE = "#d98c2b"
OLIVE = "#8a6d1c"
GREY = "#555555"  # a baseline
INK = "#222222"  # reference lines
BAND = "#999999"  # areas behind curves
PALE = "#cccccc"  # undecided parts of bars
