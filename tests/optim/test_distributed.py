"""Two processes (gloo): under DDP the ranks stay identical to the bit, and equal one process with the whole batch."""

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

import entryclip as ec

RUNNING = ec.Clip(ec.smooth_shrinkage, ec.Running(ec.Quantile(0.9), beta=0.9))


def make_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))


def train(model, inputs, steps=6):
    optimizer = ec.optim.build(model, "muon", lr=0.02, roles={"hidden": {"pre": RUNNING, "post": ec.hard(0.99)}})
    for x in inputs[:steps]:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return torch.cat([p.detach().ravel() for p in model.parameters()])


def batches():
    g = torch.Generator().manual_seed(1)
    return [torch.randn(8, 6, generator=g) for _ in range(6)]


def worker(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    model = DistributedDataParallel(make_model())
    weights = train(model, [x[rank::2] for x in batches()])
    both = [torch.empty_like(weights) for _ in range(2)]
    dist.all_gather(both, weights)
    assert torch.equal(both[0], both[1])
    if rank == 0:
        torch.save(weights, f"{folder}/weights.pt")
    dist.destroy_process_group()


def test_ddp(tmp_path):
    mp.spawn(worker, args=(str(tmp_path),), nprocs=2)
    together = torch.load(tmp_path / "weights.pt", weights_only=True)
    torch.testing.assert_close(together, train(make_model(), batches()), rtol=1e-4, atol=1e-5)
