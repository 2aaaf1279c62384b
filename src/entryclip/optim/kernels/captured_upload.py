"""Uploads inside a CUDA graph: each replay copies from the host's memory again, so that memory must stay as it was."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class CapturedUpload:
    """Copies an array of bytes of one size to a device while a graph is captured, from pinned memory of its own.

    Pinned memory cannot be allocated during a capture: `prepare` makes it before. Each capture uses up one piece, which
    is never written to again, since the graph reads it at every replay.
    """

    def __init__(self, size: int, device: torch.device):
        self._size, self._device = size, device
        self._spare: Tensor | None = None
        self._in_use: list[Tensor] = []  # by graphs

    def prepare(self) -> None:
        """Make sure that the next capture finds memory; to be called outside of one."""
        if self._spare is None:
            self._spare = torch.empty(self._size, dtype=torch.uint8, pin_memory=self._device.type != "cpu")

    def upload(self, array: NDArray[np.uint8]) -> Tensor:
        """Return a copy of `array` on the device, which every replay makes again."""
        if self._spare is None:
            raise RuntimeError(
                "there is no pinned memory left for this capture: take a step outside of a CUDA graph before each one"
            )
        host, self._spare = self._spare, None
        host.numpy()[:] = array
        self._in_use.append(host)
        return torch.empty(self._size, dtype=torch.uint8, device=self._device).copy_(host, non_blocking=True)
