"""Training on one process or on several: torchrun starts them, torch.distributed connects them.

ddp     every process has the whole model; gradients are averaged
fsdp    parameters, gradients and optimizer state are sharded over the processes (FSDP2)
"""

import datetime
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

STRATEGIES = ("ddp", "fsdp")
_TORCHRUN = {"WORLD_SIZE": 1, "RANK": 0, "LOCAL_RANK": 0}  # torchrun's variables, and their values without it


@dataclass(frozen=True)
class Processes:
    """The processes that train one model together, seen from one of them. By default there is only this one.

    rank        number of this process, 0 to count - 1
    strategy    ddp or fsdp
    """

    rank: int = 0
    count: int = 1
    strategy: str = "ddp"
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ValueError(f"strategy must be one of {', '.join(STRATEGIES)}, got {self.strategy!r}")

    @property
    def is_sharded(self) -> bool:
        """Whether each process holds only its shard of every parameter."""
        return self.count > 1 and self.strategy == "fsdp"

    def wrap(self, model: nn.Module) -> nn.Module:
        """Prepare `model` for training by all processes: wrapped for ddp, sharded in place for fsdp."""
        if self.count == 1:
            return model
        if not self.is_sharded:
            return DistributedDataParallel(model, device_ids=[self.device] if self.device.type == "cuda" else None)
        from torch.distributed.device_mesh import init_device_mesh  # here: a single process need not wait for it
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(self.device.type, (self.count,))
        for block in model.blocks:  # type: ignore[union-attr]
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model

    def mean(self, value: Tensor) -> Tensor:
        """Average a tensor over the processes."""
        if self.count == 1:
            return value
        total = value.detach().clone()
        dist.all_reduce(total)
        return total / self.count

    def first_message(self, message: str) -> str:
        """Broadcast the first non-empty message, in rank order, to all processes; an empty string if all are empty."""
        if self.count == 1:
            return message
        messages: list[str | None] = [None] * self.count
        dist.all_gather_object(messages, message)
        return next(filter(None, messages), "")

    def barrier(self) -> None:
        """Wait until all processes have come here."""
        if self.count > 1:
            dist.barrier()

    @contextmanager
    def local_gradients(self, wrapped: nn.Module, enabled: bool) -> Iterator[None]:
        """Keep gradients on their process inside the block, if `enabled`: only the last microbatch averages them."""
        if self.count == 1 or not enabled:
            yield
        elif isinstance(wrapped, DistributedDataParallel):
            with wrapped.no_sync():
                yield
        else:
            from torch.distributed.fsdp import FSDPModule

            assert isinstance(wrapped, FSDPModule)
            wrapped.set_requires_gradient_sync(False)
            try:
                yield
            finally:
                wrapped.set_requires_gradient_sync(True)


@contextmanager
def connected_processes(strategy: str = "ddp", *, timeout: float = 600.0) -> Iterator[Processes]:
    """Connect the processes that torchrun started, for the length of the block; without torchrun, there is only one.

    timeout     seconds after which a process gives up waiting for one that is gone; torch's own is half an hour
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
