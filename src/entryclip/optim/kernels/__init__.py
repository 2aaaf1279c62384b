"""Fast implementations of whole optimizer steps: what is to be done (`plan`), and the backends that do it."""
