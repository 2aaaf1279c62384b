"""Arithmetic without subnormal numbers, for training runs that would be full of them.

One gradient entry of 1e35 makes all others of a matrix subnormal once it is divided by its norm, as Muon does before
its iterations, and a CPU computes with such numbers several times slower. As zeros they change nothing that matters.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def subnormals_flushed() -> Iterator[None]:
    """Take subnormal results of this thread's floating-point operations as zeros, where the processor can.

    >>> with subnormals_flushed():
    ...     flushed = float(torch.tensor(1e-30) * torch.tensor(1e-12))
    >>> flushed, float(torch.tensor(1e-30) * torch.tensor(1e-12)) > 0
    (0.0, True)
    """
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
