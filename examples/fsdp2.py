"""FSDP2 on two processes: the parameters are sharded, and each matrix has the threshold of the whole matrix.

On GPUs, start it by `torchrun --nproc-per-node 2` with the backend "nccl" instead of `mp.spawn`.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import fully_shard

import entryclip as ec

PROCESSES, STEPS = 2, 30


def train(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=PROCESSES)
    torch.manual_seed(0)  # the same weights on all processes
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 16))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = ec.optim.build(model, "muon", lr=0.02, other_lr=3e-3)  # after the model is sharded
    truth = torch.randn(32, 16, generator=torch.Generator().manual_seed(1)) / 4
    g = torch.Generator().manual_seed(2 + rank)  # each process has its own data
    for step in range(STEPS):
        x = torch.randn(64, 32, generator=g)
        loss = (model(x) - torch.tanh(x @ truth)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss.detach().div_(PROCESSES))
        if rank == 0 and step in (0, STEPS - 1):
            print(f"step {step:2}: loss {loss:.4f}", flush=True)
    report = optimizer.clip_report(top=1)  # on all processes: it gathers
    if rank == 0:
        local = tuple(model[2].weight.to_local().shape)
        print(f"2.weight is {tuple(model[2].weight.shape)}, on this process {local}")
        print(report[0], flush=True)
    dist.destroy_process_group()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train, args=(folder,), nprocs=PROCESSES)


if __name__ == "__main__":
    main()
