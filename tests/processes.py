"""Run a function on several processes (gloo), as the tests of many processes do."""

import datetime
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

# What the tests of many processes import: it takes seconds, a fork of a process that has done it takes none.
PRELOADED = [
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.nn.parallel",
    "entryclip.optim.presets",
    "entryclip.testing",
    "pytest",
]


def on_processes(count, function, folder, *arguments):
    """Call `function(rank, *arguments)` on each; an error on any of them is raised here.

    One that is done waits for the others and ends without Python's own clearing up: threads of torch's that are still
    there then abort the process now and then ("terminate called without an active exception").

    They are forks of one process that has imported torch and started no thread: not of this one, which has threads.
    """
    mp.set_forkserver_preload(PRELOADED)
    arguments = (count, function, str(folder), arguments)
    mp.start_processes(_enter, args=arguments, nprocs=count, start_method="forkserver")


def _enter(rank, count, function, folder, arguments):
    torch.set_num_threads(1)
    store = f"file://{folder}/store-{function.__name__}-{count}"
    timeout = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=count, timeout=timeout)
    try:
        function(rank, *arguments)
        dist.barrier()
    finally:
        dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class Traffic:
    """Counts the calls of collectives, and the bytes that each process gives to the process group."""

    def __init__(self, monkeypatch_target=dist):
        self.calls = 0
        self.bytes = 0
        self.largest = 0
        self.target = monkeypatch_target

    def __enter__(self):
        self.original = {name: getattr(self.target, name) for name in ("all_reduce", "all_to_all_single")}
        for name, function in self.original.items():
            setattr(self.target, name, self._counting(function, 1 if name == "all_to_all_single" else 0))
        for name in ("all_gather", "all_gather_into_tensor", "gather", "broadcast", "send"):
            self.original[name] = getattr(self.target, name)
            setattr(self.target, name, self._refuse(name))
        return self

    def __exit__(self, *error):
        for name, function in self.original.items():
            setattr(self.target, name, function)

    def _counting(self, function, place):
        def counted(*arguments, **options):
            tensor = arguments[place]
            self.calls += 1
            self.bytes += tensor.numel() * tensor.element_size()
            self.largest = max(self.largest, tensor.numel())
            return function(*arguments, **options)

        return counted

    def _refuse(self, name):
        def refused(*arguments, **options):
            raise AssertionError(f"{name} was called: the entries should stay where they are")

        return refused
