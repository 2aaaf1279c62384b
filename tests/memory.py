"""How much memory a function takes, by torch and by numpy."""

import tracemalloc

from torch.profiler import ProfilerActivity, profile


def peak(step):
    """The most memory in use at one time during a step, by torch and by numpy, above what was in use before."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    by_torch = torch_peak(step)
    by_numpy = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    return by_torch, by_numpy


def torch_peak(step):
    """By torch alone, for what takes long."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step()
    used = most = 0
    for event in seen.profiler.kineto_results.events():
        if event.name() == "[memory]":
            used += event.nbytes()
            most = max(most, used)
    return most
