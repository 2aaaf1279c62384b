"""The same examples on every run, and no time limit on one: the first call of a jax function compiles.

One thread per worker: several workers with a thread per core each wait for each other most of the time.
"""

import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)

settings.register_profile(
    "fixed", derandomize=True, deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("fixed")
