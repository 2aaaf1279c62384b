"""Errors for parameters that were flattened into one dimension, where a clip would silently do nothing.

A clip has one threshold per matrix, and vectors are not clipped by default. FSDP1, DeepSpeed's ZeRO and Megatron's
distributed optimizer give an optimizer flat pieces of memory that hold many matrices, or parts of one.
"""

from collections.abc import Iterable

from torch import Tensor

from .groups import STAGES, Group

_FLAT = 1 << 20  # entries of a vector that can hardly be a bias or a gain: as many classes as no head has
_REMEDY = (
    "shard by FSDP2 (torch.distributed.fsdp.fully_shard), or use DistributedDataParallel, if memory is short with "
    "ZeroRedundancyOptimizer: all three keep the shapes. Or make the optimizer without clips"
)


def refuse_flat_pieces(params: Iterable[Tensor], clip_vectors: bool) -> None:
    """Raise where a parameter of a clipped group is FSDP1's, or a vector that is too long to be one."""
    for p in params:
        if getattr(p, "_fsdp_flattened", False):
            raise ValueError(
                f"FSDP1 has flattened a parameter, to shape {tuple(p.shape)} here: a clip needs whole matrices and "
                f"would do nothing, or another thing on each process; {_REMEDY}"
            )
        if p.ndim == 1 and p.numel() >= _FLAT and not clip_vectors:
            raise ValueError(
                f"a parameter of shape {tuple(p.shape)} looks like flattened matrices, which a clip would leave alone: "
                f"{_REMEDY}. If it is a vector, say so: clip_vectors=True clips it"
            )


def refuse_flattened_since(group: Group, number: int, vectors: frozenset[int]) -> None:
    """Raise where a clipped group that had matrices when it was added holds other vectors in their place.

    `vectors` are the ids of the parameters that were vectors then.
    """
    params = group["params"]
    if any(p.ndim >= 2 for p in params) or not is_clipped(group) or group["clip_vectors"]:
        return
    for p in params:
        if id(p) not in vectors:
            raise ValueError(
                f"param group {number} had matrices when the optimizer was made, and now holds a vector of shape "
                f"{tuple(p.shape)} in their place, as DeepSpeed's ZeRO, Megatron's distributed optimizer and FSDP1 "
                f"put it there: a clip needs whole matrices and would do nothing; {_REMEDY}"
            )


def is_clipped(group: Group) -> bool:
    """Tell whether any stage of a group has a clip."""
    return any(group[stage] is not None for stage in STAGES)


def vectors_of(group: Group) -> frozenset[int] | None:
    """Return the ids of the vectors of a group that has matrices besides; None where it has none."""
    if all(p.ndim < 2 for p in group["params"]):
        return None
    return frozenset(id(p) for p in group["params"] if p.ndim < 2)
