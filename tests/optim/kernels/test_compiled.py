"""The kernels compiled for GPUs that are not here: no spills, few registers, 128-bit loads and stores."""

import os

import pytest

pytest.importorskip("triton", reason="the kernels for GPUs are written in Triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("nothing is compiled while TRITON_INTERPRET=1", allow_module_level=True)

from compiled import HALF_VECTORS, LARGEST, TARGETS, VARIANTS, VECTORS, compile_variant


def pairs():
    """Every variant for one target, in turns, and the largest ones for all of them; the others are exhaustive."""
    for i, name in enumerate(VARIANTS):
        for j, target in enumerate(TARGETS):
            usual = name in LARGEST or i % len(TARGETS) == j
            yield pytest.param(name, target, marks=[] if usual else pytest.mark.exhaustive)


@pytest.mark.parametrize(("name", "target"), list(pairs()))
def test_code(name, target):
    made = compile_variant(name, target)
    assert made.spills == 0
    assert made.registers <= 128
    if name in VECTORS:
        # On AMD the constants of a matrix are loaded by vectors, too, and a short loop is unrolled.
        if target.startswith("sm"):
            assert (made.loads, made.stores) == VECTORS[name]
        else:
            assert made.loads >= VECTORS[name][0]
            assert made.stores >= VECTORS[name][1]
    if name in HALF_VECTORS:
        loads, stores = HALF_VECTORS[name]  # on AMD bf16 and fp16 may share an instruction
        assert made.half_loads == loads if target.startswith("sm") else made.half_loads >= bool(loads)
        assert made.half_stores == stores if target.startswith("sm") else made.half_stores >= bool(stores)
