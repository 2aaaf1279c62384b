"""Ids by which a part of a figure tells the report page how to treat it."""

KEEP_COLOURS = "keep-colours"
"""What the `gid` of text or lines on a heatmap begins with. The heatmap is an image, the same on a light and on a dark
page; what is drawn on it must keep its colours too, where all else is recoloured for the dark."""
