"""One process or many: torchrun starts them, torch.distributed connects them.

ddp     every process has the whole model; gradients are averaged
fsdp    parameters, gradients and optimizer state are cut into pieces, one per process (FSDP2)
"""

import datetime
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

STRATEGIES = ("ddp", "fsdp")


@dataclass(frozen=True)
class Processes:
    """Which of how many this is, and how they share the work."""

    rank: int = 0
    count: int = 1
    strategy: str = "ddp"
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ValueError(f"strategy must be one of {', '.join(STRATEGIES)}, got {self.strategy!r}")

    @property
    def sharded(self) -> bool:
        """Whether each process holds only its piece of every parameter."""
        return self.count > 1 and self.strategy == "fsdp"

    def share(self, model: nn.Module) -> nn.Module:
        """`model`, ready to be trained by all processes together."""
        if self.count == 1:
            return model
        if not self.sharded:
            return DistributedDataParallel(model, device_ids=[self.device] if self.device.type == "cuda" else None)
        mesh = init_device_mesh(self.device.type, (self.count,))
        for block in model.blocks:  # type: ignore[union-attr]
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model

    def mean(self, value: Tensor) -> Tensor:
        """The mean of a number over the processes."""
        if self.count == 1:
            return value
        total = value.detach().clone()
        dist.all_reduce(total)
        return total / self.count

    def first(self, words: str) -> str:
        """What the first process says that says anything."""
        if self.count == 1:
            return words
        said: list[Any] = [None] * self.count
        dist.all_gather_object(said, words)
        return next(filter(None, said), "")

    def wait(self) -> None:
        """Until all processes are here."""
        if self.count > 1:
            dist.barrier()

    @contextmanager
    def apart(self, shared: nn.Module, wanted: bool) -> Iterator[None]:
        """Inside, where `wanted`, gradients stay with their process: the last microbatch brings them together."""
        if self.count == 1 or not wanted:
            yield
        elif isinstance(shared, DistributedDataParallel):
            with shared.no_sync():
                yield
        else:
            assert isinstance(shared, FSDPModule)
            shared.set_requires_gradient_sync(False)
            try:
                yield
            finally:
                shared.set_requires_gradient_sync(True)


@contextmanager
def joined(strategy: str = "ddp", *, timeout: float = 600.0) -> Iterator[Processes]:
    """The processes that torchrun started, connected while inside; without torchrun, this one alone.

    timeout     seconds after which a process whose partner is gone gives up; torch's own is half an hour
    """
    count, rank, local = (int(os.environ.get(name, default)) for name, default in _TORCHRUN.items())
    device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
    processes = Processes(rank, count, strategy, device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if count == 1:
        yield processes
        return
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=timeout))
    try:
        yield processes
    finally:
        dist.destroy_process_group()


_TORCHRUN = {"WORLD_SIZE": 1, "RANK": 0, "LOCAL_RANK": 0}
