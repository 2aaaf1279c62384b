"""auto() in AdamW's Triton step, in Triton's interpreter: see test_interpreted.py."""

import copy
import os
import sys
from pathlib import Path

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs TRITON_INTERPRET=1: test_gpu.py runs this file with it", allow_module_level=True)
pytest.importorskip("triton")

sys.path.insert(0, str(Path(__file__).parents[1]))

from test_fused_auto import go_on, gradients, trained
from test_interpreted import (
    LargeBackend,
    SmallBackend,
    _fast_calls,  # noqa: F401 - a fixture
    traffic,  # noqa: F401 - a fixture
    with_backend,
)
from test_interpreted_capture import RecordedBackend, Training, assert_equal
from test_interpreted_half import compare_half

import entryclip as ec
from entryclip.auto_threshold import Auto
from entryclip.optim.kernels.scaled_gpu import ScaledGPUBackend

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(autouse=True, scope="module")
def _large_chunks():
    """The tables of a decision in one piece: the interpreter's time goes with the number of operations."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScaledGPUBackend, "chunk", 256)
        yield


SMOOTH, HARD = ec.auto(), ec.auto(ec.hard_clip)
POST, GRAD = {"post": SMOOTH}, {"grad": SMOOTH, "post": None}
LAUNCHES = ["scan", "scale", "sketch", "decide", "move"]


class WideBackend(LargeBackend):
    """The backend with tiles of 128 x 128 entries: the interpreter's time goes with their number."""

    tile, block = 1 << 14, 1 << 14


def assert_close(plain, fast):
    """Compare the parameters and all of the state within 1e-6.

    The directions differ by rounding, so that now and then an entry falls into the next bin of a sketch.
    """
    for p, q in zip(plain[0], fast[0], strict=True):
        torch.testing.assert_close(q, p, rtol=1e-6, atol=1e-6)
        theirs, ours = plain[1].state[p], fast[1].state[q]
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            if key.endswith("_sketch"):
                assert (ours[key] - value).abs().sum() <= 1e-4 * value.sum() + 2.0
            else:
                size = float(value.abs().max().nan_to_num(posinf=0.0)) if value.numel() else 0.0
                torch.testing.assert_close(ours[key], value, rtol=1e-6, atol=1e-6 * (1 + size), msg=key)


def compare(shapes, steps, backend=WideBackend, layout=(), **options):
    """Compare some steps on the plain path with those of the kernels, which have to take all parameters."""
    plain = trained(False, shapes, steps, layout, lr=0.1, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Auto, "clip", lambda *_: pytest.fail("the plain path clips"))
        fast = with_backend(lambda: trained(True, shapes, steps, layout, lr=0.1, **options), backend)
    assert_close(plain, fast)
    return fast


CASES = [
    pytest.param({"post": SMOOTH}, {}, [(80, 90), (33,)], id="post smooth"),
    pytest.param({"post": HARD}, {"transposed": True}, [(80, 90)], id="post hard transposed"),
    pytest.param({"grad": HARD, "post": None}, {"blocks": 2}, [(128, 96)], id="grad hard blocks"),
    pytest.param({"grad": SMOOTH, "post": None}, {"flatten": True}, [(72, 5, 4, 4)], id="grad smooth flatten"),
]
OTHER_CASES = [
    pytest.param(
        {stage: clip, other: None}, layout, [(80, 90), (2, 70, 60), (40, 3, 5, 5)], marks=pytest.mark.exhaustive
    )
    for stage, other in (("grad", "post"), ("post", "grad"))
    for clip in (SMOOTH, HARD)
    for layout in ({}, {"transposed": True}, {"flatten": True}, {"flatten": True, "transposed": True})
]


@pytest.mark.parametrize(("options", "layout", "shapes"), CASES + OTHER_CASES)
def test_twenty_steps_equal_the_plain_path(options, layout, shapes):
    """In these a clip acts and the guard does, and entries are zero."""
    _, optimizer = compare(shapes, 20, layout=layout, **options)
    decisions = optimizer._fused[0]._scaled._decisions
    assert decisions[:, 0].all()  # the last step clips
    assert (decisions[:, 1] > 0).all()


def test_a_clip_acts_from_the_gain_that_is_asked_for():
    """One matrix whose gain is known: margins 1 % below and above it decide as the plain path does."""
    (p,), optimizer = trained(False, [(80, 90)], 3, (), lr=0.1, **GRAD)  # a step decides by the sketch of those before
    sketch = optimizer.state[p]["grad_sketch"]
    low, high = 1.0, 1e6
    while high / low > 1.0001:
        middle = (low * high) ** 0.5
        acts = bool(Auto(margin=middle).decide(sketch, ec.smooth_shrinkage, (80, 90)).clips.all())
        low, high = (middle, high) if acts else (low, middle)
    for margin, acts in ((0.99 * low, True), (1.01 * high, False)):
        clip = ec.Clip(ec.smooth_shrinkage, Auto(margin=margin))
        _, optimizer = compare([(80, 90)], 4, grad=clip, post=None)
        assert bool(optimizer._fused[0]._scaled._decisions[0, 0]) is acts


def test_a_narrow_matrix_is_guarded_only():
    """Its gain is as large as that of the same entries in a square, where the clip acts."""
    for shape, acts in (((20, 320), False), ((80, 80), True), ((1, 6400), True)):  # a single row is a vector
        _, optimizer = compare([shape], 4, **GRAD)
        assert bool(optimizer._fused[0]._scaled._decisions[0, 0]) is acts


@pytest.mark.parametrize(
    ("options", "transposed"),
    [
        (POST, False),
        (GRAD, True),
        pytest.param(POST, True, marks=pytest.mark.exhaustive),
        pytest.param(GRAD, False, marks=pytest.mark.exhaustive),
    ],
)
def test_many_matrices_of_many_tiles(options, transposed):
    """Also those that are a single row or column, and vectors."""
    shapes = [(5, 300), (2, 9, 131), (60, 1), (1, 40), (1, 1), (7, 4), (33,), ()]
    layout = {"clip_vectors": True, "transposed": transposed}
    compare(shapes, 2, SmallBackend, layout, **options)


@pytest.mark.parametrize("transposed", [False, True])
def test_rows_of_a_large_matrix_are_looked_at_in_turn(transposed):
    shapes = [(300, 512) if transposed else (512, 300)]  # every second row
    _, optimizer = compare(shapes, 3, layout={"transposed": transposed}, **(POST if transposed else GRAD))
    (state,) = optimizer.state.values()
    sketch, looks = (state[key] for key in state if key.endswith(("_sketch", "_looks")))
    assert float(looks) == 3.0
    assert float(sketch.sum()) < 3 * 512 * 300 / 2


@pytest.mark.parametrize("options", [POST, pytest.param(GRAD, marks=pytest.mark.exhaustive)], ids=["post", "grad"])
def test_the_order_of_the_tiles_changes_nothing(options):
    results = []
    for shuffled in (False, True):
        params = [torch.nn.Parameter(x) for x in next(gradients([(20, 300), (9, 140)], 1, seed=1))]
        optimizer = ec.optim.AdamW(params, fused=True, lr=0.1, eps=100.0, **options)
        for number, found in enumerate(gradients([(20, 300), (9, 140)], 3)):
            for p, g in zip(params, found, strict=True):
                p.grad = g
            if shuffled and number:
                scaled = optimizer._fused[0]._scaled
                for tiles in (scaled._tiles, scaled._looked_tiles):
                    tiles.copy_(tiles[torch.randperm(len(tiles), generator=torch.Generator().manual_seed(number))])
            with_backend(optimizer.step, SmallBackend)
        results.append([*params, *(x for p in params for x in optimizer.state[p].values())])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("options", [POST, GRAD], ids=["post", "grad"])
@pytest.mark.parametrize("shift", [0, 1], ids=["aligned", "unaligned"])
def test_half_precision_with_fp32_state(options, shift):
    dtypes = [torch.bfloat16, torch.float16, torch.float32]
    compare_half(WideBackend, dtypes, [(16, 24), (5,)], 3, shift, **options)


@pytest.mark.parametrize("options", [{"maximize": True}, {"betas": (0.0, 0.5)}], ids=str)
def test_options(options):
    compare([(64, 72)], 3, **GRAD, **options)


@pytest.mark.parametrize("policy", ["propagate", "skip"])
@pytest.mark.parametrize("operator", [ec.smooth_shrinkage, ec.hard_clip])
def test_policies_where_the_direction_is_not_finite(policy, operator):
    """With eps = 0 a zero gradient gives 0/0, and one whose square underflows gives x/0."""

    def step():
        w = torch.nn.Parameter(torch.zeros(6, 6))
        optimizer = ec.optim.AdamW([w], eps=0.0, fused=True, nonfinite=policy, post=ec.auto(operator))
        w.grad = torch.linspace(-1, 1, 36).reshape(6, 6)
        w.grad[0, :3] = torch.tensor([1e-30, -1e-30, 0.0])
        optimizer.param_groups[0]["fused"] = fused
        optimizer.step()
        return w.detach()

    fused = False
    plain = step()
    fused = True
    torch.testing.assert_close(with_backend(step, WideBackend), plain, rtol=1e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("options", [POST, GRAD], ids=["post", "grad"])
def test_a_broken_gradient_arrives_as_in_the_plain_step(value, options):
    def steps(fused):
        params, optimizer = trained(fused, [(20, 30)], 1, **options)
        params[0].grad = torch.ones(20, 30)
        params[0].grad[3, 5] = value
        optimizer.step()
        return params[0].isfinite()

    found = with_backend(lambda: steps(True), WideBackend)
    assert torch.equal(found, steps(False))
    assert not found.all()


@pytest.mark.parametrize("options", [POST, GRAD], ids=["post", "grad"])
def test_state_moves_between_the_plain_step_the_cpus_kernel_and_the_gpus(options):
    """Each goes on from a checkpoint of each, as it would have itself."""
    shapes = [(70, 80), (2, 10, 12)]
    made = {
        "plain": trained(False, shapes, 4, lr=0.1, **options),
        "cpu": trained(True, shapes, 4, lr=0.1, **options),
        "gpu": with_backend(lambda: trained(True, shapes, 4, lr=0.1, **options), WideBackend),
    }
    expected = None
    for before, after in (("plain", "plain"), ("plain", "gpu"), ("cpu", "gpu"), ("gpu", "cpu"), ("gpu", "plain")):
        params, optimizer = made[before]
        copies = [torch.nn.Parameter(p.detach().clone()) for p in params]
        other = ec.optim.AdamW(copies, lr=0.1, **options)
        other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        other.param_groups[0]["fused"] = after != "plain"

        def further(other=other, copies=copies):
            go_on(other, copies, shapes, 2, seed=3)

        with_backend(further, WideBackend) if after == "gpu" else further()
        expected = expected or (copies, other)
        assert_close(expected, (copies, other))


@pytest.mark.parametrize("options", [POST, GRAD], ids=["post", "grad"])
def test_number_of_launches(options):
    """Six for all matrices and vectors of a group, five without vectors; an exact quantile takes eleven."""
    for shapes, expected in (([(8, 8), (2, 8, 6), (12,)], ["walk", *LAUNCHES]), ([(8, 8)], LAUNCHES)):
        ps = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
        optimizer = ec.optim.AdamW(ps, fused=True, **options)
        for _ in range(2):
            for p in ps:
                p.grad = torch.ones_like(p)
            with_backend(optimizer.step, WideBackend)
        assert WideBackend.last.launches == 2 * expected


@pytest.mark.parametrize(("options", "expected"), [(POST, 36), (GRAD, 32)], ids=["post", "grad"])
def test_bytes_per_entry(options, expected, traffic):  # noqa: F811
    """Scales of rows and columns come on top of those of the entries, and a part that is looked at twice."""
    counted, counting = traffic

    class Backend(counting):
        tile, block = 1 << 14, 1 << 14

    p = torch.nn.Parameter(torch.zeros(512, 512))
    optimizer = ec.optim.AdamW([p], fused=True, **options)
    p.grad = torch.randn(512, 512, generator=torch.Generator().manual_seed(0))
    with_backend(optimizer.step, Backend)
    scan, scale, sketch, decide, move = (each / p.numel() for each in counted)
    assert expected <= scan + move < 1.01 * expected
    looked_at = 1 / 4  # 65,536 entries: m and v, or g; and two scales, which caches hold
    assert sketch == looked_at * (8 + (8 if options is POST else 4))
    assert scale * p.numel() == 48 * (512 + 512)  # for each row and column
    assert decide * p.numel() < 280_000  # the tables, whatever the size of the matrix; all matrices read the same


@pytest.mark.parametrize("options", [POST, GRAD], ids=["post", "grad"])
def test_a_replay_is_an_eager_step(options):
    """No result is read by the host, which a recorder would not allow."""
    eager, graph = (Training(options["post"], **{k: v for k, v in options.items() if k != "post"}) for _ in range(2))
    for each in (eager, graph):
        each.eager_step(0)
    graph.set_step(1, anew=True)
    recorder = graph.captured_step()
    graph.set_step(2)
    recorder.replay()
    for seed in (1, 2):
        eager.eager_step(seed)
    assert_equal(eager, graph)
    assert RecordedBackend.last.launches[-5:] == LAUNCHES


def test_the_chunks_of_a_decision_change_little(monkeypatch):
    """As they are on a device."""
    monkeypatch.setattr(ScaledGPUBackend, "chunk", 8)
    compare([(64, 72)], 2, **POST)


def test_a_clip_at_both_stages_leaves_the_gradients_to_the_plain_path():
    plain = trained(False, [(64, 72)], 3, lr=0.1, grad=SMOOTH, post=HARD)
    fast = with_backend(lambda: trained(True, [(64, 72)], 3, lr=0.1, grad=SMOOTH, post=HARD), WideBackend)
    assert_close(plain, fast)
    assert WideBackend.last.launches[-5:] == LAUNCHES
