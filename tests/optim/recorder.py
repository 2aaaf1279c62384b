"""Records the operations of a step and runs them again, as a CUDA graph does, on tensors that lie on the CPU."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

HOST_READS = frozenset(["_local_scalar_dense", "equal", "is_nonzero", "item", "masked_select", "nonzero", "unique"])


class Elsewhere(TorchDispatchMode):
    """Makes CPU tensors look like those of a device: under a dispatch mode numpy may not read them."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Recorder(TorchDispatchMode):
    """Keeps every operation that runs under it, with its arguments and results. A read on the host is an error.

    `replay` runs each again on the same arguments and writes the results where they were. Python between the operations
    does not run again, and what it computed stays: that is what a replay of a CUDA graph does.
    """

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in HOST_READS:
            raise RuntimeError(f"the host reads a tensor during capture: {name}")
        kwargs = kwargs or {}
        results = func(*args, **kwargs)
        self.calls.append((func, args, kwargs, results))
        return results

    def launch(self, function):
        """Run something that is not an operation of torch, and again at each replay."""
        function()
        self.calls.append((function, (), {}, None))

    @torch.no_grad()
    def replay(self):
        for func, args, kwargs, results in self.calls:
            for kept, new in zip(tree_leaves(results), tree_leaves(func(*args, **kwargs)), strict=True):
                if isinstance(kept, torch.Tensor) and kept.data_ptr() != new.data_ptr():
                    kept.copy_(new)


class Places(TorchDispatchMode):
    """Notes the types of the devices of all tensors that operations read and write."""

    def __init__(self):
        super().__init__()
        self.found = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        results = func(*args, **(kwargs or {}))
        tensors = [t for t in tree_leaves((args, kwargs, results)) if isinstance(t, torch.Tensor)]
        self.found |= {t.device.type for t in tensors}
        return results


def record(step):
    """Return the recording of one call of `step`. Unlike a capture, recording also takes the step."""
    with Recorder() as recorder:
        step()
    return recorder
