"""Optimization methods, one file each: the `Method` object that states the mathematics and the torch-like optimizer."""
