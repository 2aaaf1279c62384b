"""The same examples on every run, and no time limit on one: the first call of a jax function compiles.

Workers that run side by side use one thread each: more would only wait for each other, at ten times the cost.
"""

import os
import random

if "PYTEST_XDIST_WORKER" in os.environ:
    for library in ("OMP", "OPENBLAS", "MKL"):  # read when numpy and torch are first imported
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "fixed", derandomize=True, deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
# `make fuzz`: other examples on every run, and many of them
settings.register_profile(
    "fuzz", deadline=None, max_examples=3000, print_blob=True, suppress_health_check=list(HealthCheck)
)
settings.load_profile("fixed")


@pytest.fixture(scope="session")
def shards(tmp_path_factory):
    """A folder of shards of a small text, in bytes."""
    from entryclip.lab.lm.data.prepare import prepare

    folder = tmp_path_factory.mktemp("shards")
    words = (
        "the",
        "cat",
        "sat",
        "on",
        "a",
        "mat",
        "and",
        "saw",
        "one",
        "dog",
        "run",
        "to",
        "its",
        "old",
        "red",
        "house",
    )
    draw = random.Random(0)
    for i in range(400):
        (folder / f"{i:03}.txt").write_text(" ".join(draw.choices(words, k=60)))
    prepare([folder], folder / "out", tokenizer="bytes", val_every=10)
    return folder / "out"
