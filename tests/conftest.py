"""The same examples on every run, and no time limit on one: the first call of a jax function compiles.

Workers that run side by side use one thread each: more would only wait for each other, at ten times the cost.
"""

import os

if "PYTEST_XDIST_WORKER" in os.environ:
    for library in ("OMP", "OPENBLAS", "MKL"):  # read when numpy and torch are first imported
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")

from hypothesis import HealthCheck, settings

settings.register_profile(
    "fixed", derandomize=True, deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("fixed")
