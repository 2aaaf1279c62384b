"""Compile the kernels for GPUs that are not here, and read registers, spills and loads from what comes out."""

import os
import re
import subprocess
import tempfile
from dataclasses import dataclass

import triton
import triton.backends.nvidia
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from entryclip.optim.kernels import triton_kernels as kernels
from entryclip.optim.kernels import triton_search as searching
from entryclip.optim.kernels.gpu import GPUBackend

TOOLS = os.path.join(os.path.dirname(triton.backends.nvidia.__file__), "bin")
TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
TYPES = {
    "table": "*i64", "constants": "*fp32", "tiles": "*i32", "ready": "*i32", "thresholds": "*fp32", "search": "*i64",
    "kept": "*i32", "kept_counts": "*i32", "clipped": "i32", "estimates": "*fp64", "q": "*fp64", "histogram": "*i64",
    "shift": "i32", "multiples": "*fp64", "totals": "*i64",
}  # fmt: skip
SHAPE = {"TILE": GPUBackend.tile, "BLOCK": 512, "ROOM": GPUBackend.tile // 16}


def walk(update, look, operator=1, limits=False):
    return kernels.walk, {"UPDATE": update, "LOOK": look, "OPERATOR": operator, "LIMITS": limits, **SHAPE}


VARIANTS = {
    "walk: update, look, move": walk(True, True),
    "walk: update, look, move; hard, limits": walk(True, True, 2, True),
    "walk: update, move": walk(True, False),
    "walk: update, move; no clip": walk(True, False, 0),
    "walk: move": walk(False, False),
    "walk: move; limits": walk(False, False, 1, True),
    "digit": (searching.digit, {"LAST": False, **SHAPE}),
    "digit, last": (searching.digit, {"LAST": True, **SHAPE}),
    "locate": (searching.locate, {}),
    "choose": (searching.choose, {"LAST": False}),
    "choose, last": (searching.choose, {"LAST": True}),
}
# 128-bit loads and stores of one block of an aligned tile, in which each thread has four entries.
VECTORS = {
    "walk: update, look, move": (4, 3),  # g, m, v, p and m, v, p
    "walk: update, look, move; hard, limits": (4, 3),
    "walk: update, move": (4, 3),
    "walk: update, move; no clip": (4, 3),
    "walk: move": (3, 1),  # m, v, p and p
    "walk: move; limits": (3, 1),
    "digit": (2, 0),  # m, v
    "digit, last": (2, 0),
}


@dataclass
class Compiled:
    registers: int
    spills: int
    loads: int  # of 128 bits
    stores: int


def compile_variant(name, target):
    function, constants = VARIANTS[name]
    if "BLOCK" in constants:  # as GPUBackend.block
        constants = {**constants, "BLOCK": 4 * GPUBackend.warps * TARGETS[target].warp_size}
    signature = {key: TYPES[key] for key in function.arg_names if key not in constants}
    pointers = [i for i, key in enumerate(function.arg_names) if signature.get(key, "").startswith("*")]
    source = ASTSource(
        function,
        {**signature, **dict.fromkeys(constants, "constexpr")},
        {(function.arg_names.index(key),): value for key, value in constants.items()},
        {(i,): [["tt.divisibility", 16]] for i in pointers},
    )
    options = {"num_warps": GPUBackend.warps, "enable_fp_fusion": False}
    made = triton.compile(source, target=TARGETS[target], options=options)
    return _nvidia(made) if target.startswith("sm") else _amd(made)


def _nvidia(made):
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        usage = _tool("cuobjdump", "--dump-resource-usage", file.name)
        code = _tool("nvdisasm", file.name)
    spills = len(re.findall(r"\b(?:STL|LDL)\b", code))
    ptx = made.asm["ptx"]
    loads, stores = (len(re.findall(rf"{kind}\.global[.a-zA-Z0-9:_]*\.v4", ptx)) for kind in ("ld", "st"))
    return Compiled(int(re.search(r"REG:(\d+)", usage)[1]), spills, loads, stores)


def _amd(made):
    code = made.asm["amdgcn"]
    registers, spills = (int(re.search(rf"\.{key}:\s+(\d+)", code)[1]) for key in ("vgpr_count", "vgpr_spill_count"))
    loads, stores = (len(re.findall(rf"(?:global|flat|buffer)_{kind}_dwordx4", code)) for kind in ("load", "store"))
    return Compiled(registers, spills, loads, stores)


def _tool(name, *arguments):
    return subprocess.run([os.path.join(TOOLS, name), *arguments], capture_output=True, text=True, check=True).stdout
