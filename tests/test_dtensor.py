"""Tensors sharded over 2 and 3 processes: the same numbers as on one, and only counts travel."""

import itertools

import pytest
import torch
import torch.distributed as dist
from processes import Traffic, on_processes
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

import entryclip as ec
from entryclip.dtensor import (
    apply_entrywise,
    apply_to_whole,
    is_dtensor,
    is_finite,
    local_slices,
    map_matrices,
    match_norms,
    norms,
    shard_count,
    shard_groups,
    shard_like,
    whole,
)

SHAPES = [(1, 7), (5, 3), (40, 30), (4, 6, 5), (3, 1, 2), (7,)]


def inputs(shape, seed=0):
    """Gaussian entries, with ties, zeros, subnormal and infinite ones."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    yield x
    yield (2 * x).round()
    yield torch.where(x > 0.5, 0, x)
    yield torch.where(x > 1, torch.inf, 1e-42 * x)
    yield 0 * x


def assert_equal_quantiles(x, sharded, q, nonzero, dim):
    expected = ec.quantile_abs(x, q, dim=dim, nonzero=nonzero)
    found = ec.quantile_abs(sharded, q, dim=dim, nonzero=nonzero)
    assert type(found) is torch.Tensor
    assert torch.equal(found, expected), (x.shape, x.dtype, sharded.placements, q, nonzero, dim)


def check_quantiles(rank):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for shape in SHAPES:
        for x, dim in itertools.product(inputs(shape), {0, len(shape) - 1}):
            x = x.float()
            sharded = distribute_tensor(x, mesh, [Shard(dim)])
            for q, nonzero in ((0.0, False), (0.5, True), (0.995, True), (1.0, False)):
                assert_equal_quantiles(x, sharded, q, nonzero, None)
            if len(shape) > 1:
                assert_equal_quantiles(x, sharded, 0.7, True, (-2, -1))
    for dtype, x in itertools.product((torch.float64, torch.bfloat16, torch.float16), inputs((3, 8, 5))):
        x = x.to(dtype)
        assert_equal_quantiles(x, distribute_tensor(x, mesh, [Shard(1)]), 0.7, True, (-2, -1))
    x = torch.randn(6, 6)
    dist.broadcast(x, 0)
    x[5, 5] = torch.nan
    assert ec.quantile_abs(distribute_tensor(x, mesh, [Shard(0)]), 0.1).isnan()
    assert ec.quantile_abs(distribute_tensor(x[:5], mesh, [Replicate()]), [0.1, 0.2]).shape == (2,)
    with pytest.raises(ValueError, match="quantile of no entries"):
        ec.quantile_abs(distribute_tensor(torch.zeros(2, 0), mesh, [Shard(0)]), 0.5)


def check_traffic(rank):
    """Counts in 2^11 bins, three times, whatever the size; the entries stay where they are."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for shape in ((1, 7), (5, 3), (512, 512)):
        sharded = distribute_tensor(torch.ones(shape), mesh, [Shard(0)])
        with Traffic() as traffic:
            ec.quantile_abs(sharded, 0.99, nonzero=True)
        assert traffic.bytes <= 3 * 4 * (2**11 + 1) + 16
    empty = distribute_tensor(torch.ones(2, 0), mesh, [Shard(0)])
    with Traffic() as traffic:
        assert ec.smooth(0.9)(empty).shape == (2, 0)
    assert traffic.bytes == 0


def check_clips(rank):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    rules = [ec.Fixed(0.7), ec.Running(ec.Quantile(0.9), beta=0.9)]
    operators = [ec.hard_clip, ec.smooth_shrinkage, ec.soft_threshold, ec.global_clip, ec.spectral_clip]
    for operator, rule, preserve_rms in itertools.product(operators, rules, (False, True)):
        clip = ec.Clip(operator, rule, preserve_rms)
        for shape, dim in (((5, 3), 0), ((2, 4, 6), 0), ((2, 4, 6), 1)):
            x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
            sharded = distribute_tensor(x, mesh, [Shard(dim)])
            expected, found = clip.update(x, clip.init(x))[0], clip.update(sharded, clip.init(sharded))[0]
            assert found.placements == sharded.placements
            torch.testing.assert_close(found.full_tensor(), expected, rtol=1e-6, atol=1e-6)


def check_owners(rank):
    """Each whole tensor is seen by one process, in order, and comes back where it was."""
    count = dist.get_world_size()
    mesh = init_device_mesh("cpu", (count,))
    for shape, dim in (((5, 3), 0), ((1, 4), 0), ((2, 0), 0), ((2, 3, 4), 2)):
        for few in {1, count}:
            xs = [torch.arange(float(torch.Size(shape).numel())).reshape(shape) + i for i in range(few)]
            sharded = [distribute_tensor(x, mesh, [Shard(dim)]) for x in xs]
            seen = []

            def double(xs, seen=seen):
                seen.extend(x.clone() for x in xs)
                return [2 * x for x in xs]

            with Traffic() as traffic:
                result = map_matrices(sharded, double)
            assert traffic.bytes <= 8 * max(shape[0] * torch.Size(shape[1:]).numel(), 0) * few
            assert [torch.equal(x, xs[rank]) for x in seen] == ([True] if rank < few else [])
            for x, y in zip(xs, result, strict=True):
                assert torch.equal(y.full_tensor(), 2 * x)


def check_local_slices(rank):
    """Also over two dimensions of processes, one of them replicated, and with sums still to be taken."""
    count = dist.get_world_size()
    mesh = init_device_mesh("cpu", (1, count), mesh_dim_names=("replicate", "shard"))
    x = torch.arange(35.0).reshape(7, 5)
    for placements in ([Replicate(), Shard(0)], [Shard(0), Shard(0)], [Shard(1), Shard(0)]):
        sharded = distribute_tensor(x, mesh, placements)
        assert torch.equal(x[local_slices(sharded)], sharded.to_local())
        assert torch.equal(ec.quantile_abs(sharded, 0.3), ec.quantile_abs(x, 0.3))
        assert torch.equal(map_matrices([sharded], negative)[0].full_tensor(), -x)
    from torch.distributed.tensor import DTensor

    pending = DTensor.from_local(x / count, mesh, [Replicate(), Partial()])
    torch.testing.assert_close(ec.quantile_abs(pending, 0.3), ec.quantile_abs(x, 0.3))


def negative(xs):
    return [-x for x in xs]


def check_both_kinds(rank):
    """Each function gives the same numbers for a plain tensor and for a DTensor."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for shape, dim in (((5, 3), 0), ((2, 4, 6), 1), ((7,), 0), ((0, 3), 0), ((2, 0), 0)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        sharded = distribute_tensor(x, mesh, [Shard(dim)])
        assert (is_dtensor(x), is_dtensor(sharded)) == (False, True)
        assert (shard_count(x), shard_count(sharded)) == (1, dist.get_world_size())
        assert (shard_groups(x), len(shard_groups(sharded))) == ([], 1)
        threshold = ec.Fixed(0.5)(x)[0]
        for each in (
            lambda y, t=threshold: whole(apply_entrywise(ec.hard_clip, y, t)),
            lambda y: whole(apply_to_whole(lambda w: w.cumsum(0), y)),
            lambda y: whole(map_matrices([y], negative)[0]),
            lambda y: whole(match_norms(2 * y, y)),
            lambda y, x=x: whole(shard_like(x, y)),
            norms,
        ):
            torch.testing.assert_close(each(sharded), each(x))
        assert is_finite(x)
        assert is_finite(sharded)
    broken = torch.ones(5, 3)
    broken[0, 0] = torch.inf
    assert not is_finite(broken)
    assert not is_finite(distribute_tensor(broken, mesh, [Shard(0)]))
    empty = distribute_tensor(torch.zeros(0, 3, 4), mesh, [Shard(1)])
    assert ec.quantile_abs(empty, torch.tensor([0.1, 0.9]), dim=(-2, -1)).shape == (2, 0)


def every_check(rank):
    for check in (check_quantiles, check_traffic, check_clips, check_owners, check_local_slices, check_both_kinds):
        check(rank)


@pytest.mark.parametrize("count", [pytest.param(2, marks=pytest.mark.exhaustive), 3])  # 3: uneven shards
def test_on_processes(count, tmp_path):
    on_processes(count, every_check, tmp_path)


def test_a_sample_of_a_spread_tensor_is_refused(tmp_path):
    on_processes(1, refuse_sample, tmp_path)


def refuse_sample(rank):
    x = distribute_tensor(torch.ones(3, 3), init_device_mesh("cpu", (1,)), [Shard(0)])
    with pytest.raises(ValueError, match="sample is not supported for a DTensor"):
        ec.quantile_abs(x, 0.5, sample=10)
