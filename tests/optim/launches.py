"""Counts what a computation asks of a device, from tensors on `meta`, which take the device's path and hold no data."""

from collections import Counter
from itertools import chain

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Operations that launch no kernel: views, and memory that is handed out as it is.
VIEWS = frozenset(
    [
        "alias",
        "as_strided",
        "detach",
        "diagonal",
        "empty",
        "empty_like",
        "empty_strided",
        "expand",
        "lift_fresh",
        "new_empty",
        "new_empty_strided",
        "permute",
        "_reshape_alias",
        "reshape",
        "select",
        "slice",
        "split",
        "split_with_sizes",
        "squeeze",
        "t",
        "transpose",
        "unbind",
        "_unsafe_view",
        "unsqueeze",
        "view",
    ]
)
FILLS = frozenset(
    ["full_like", "new_full", "new_ones", "new_zeros", "ones_like", "zeros_like"]
)  # read only an argument's shape
SYNCHRONISING = frozenset(
    ["_local_scalar_dense", "bincount", "equal", "is_nonzero", "item", "masked_select", "nonzero", "unique"]
)
PRODUCTS = frozenset(["addmm", "baddbmm", "bmm", "mm"])
# How torch cuts a list of tensors into launches: so many blocks of so many entries, and so many tensors, in each.
FOREACH_BLOCKS, FOREACH_ENTRIES, FOREACH_TENSORS = 320, 65536, 30


class Launches(TorchDispatchMode):
    """Counts kernels, bytes read and written, and waits of the host, while it is active.

    Every operation on a device counts as one launch that reads each argument once and writes each result once. That is
    less than the truth for `topk`, which reads its argument several times. A `_foreach` operation counts as the
    launches into which torch cuts its list.
    """

    def __init__(self):
        super().__init__()
        self.operations = Counter()
        self.bytes = 0
        self.synchronisations = 0

    @property
    def count(self):
        return self.operations.total()

    @property
    def products(self):
        return sum(self.operations[name] for name in PRODUCTS)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        read = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        is_foreach = name.startswith("_foreach")
        in_place = is_foreach and result is None
        written = [t for t in tree_leaves(args[0] if in_place else result) if isinstance(t, torch.Tensor)]
        if name not in VIEWS and any(t.device.type == "meta" for t in chain(read, written)):
            self.synchronisations += name in SYNCHRONISING
            self.operations[name] += foreach_launches(args[0]) if is_foreach else 1
            distinct = (
                {} if name in FILLS else {(t.untyped_storage()._cdata, t.storage_offset(), t.shape): t for t in read}
            )
            self.bytes += sum(map(size_in_bytes, chain(distinct.values(), written)))
        return result


def foreach_launches(tensors):
    """Launches of an operation on a list of tensors, no fewer than torch's multi_tensor_apply makes of it."""
    blocks = sum(-(-t.numel() // FOREACH_ENTRIES) for t in tensors)
    return max(-(-blocks // FOREACH_BLOCKS), -(-len(tensors) // FOREACH_TENSORS))


def size_in_bytes(t):
    """Bytes of the entries that differ: a dimension with stride 0 repeats one."""
    entries = 1
    for side, stride in zip(t.shape, t.stride(), strict=True):
        entries *= side if stride else 1
    return entries * t.element_size()


def step_launches(make, shapes, dtype=torch.float32, steps=2):
    """Launches of the last of some steps of the optimizer `make(params)`, of parameters with these shapes on `meta`."""
    params = [torch.nn.Parameter(torch.empty(shape, dtype=dtype, device="meta")) for shape in shapes]
    optimizer = make(params)
    for _ in range(steps):
        for p in params:
            p.grad = torch.empty_like(p)
        with Launches() as launches:
            optimizer.step()
    return launches
