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

from entryclip.optim.kernels import triton_decision as decision
from entryclip.optim.kernels import triton_kernels as kernels
from entryclip.optim.kernels import triton_momentum as momentum
from entryclip.optim.kernels import triton_scaled as scaled
from entryclip.optim.kernels import triton_search as searching
from entryclip.optim.kernels.gpu import GPUBackend
from entryclip.optim.kernels.plan import DirectionKind
from entryclip.quantiles import gpu as quantiles
from entryclip.quantiles import triton_digits as digits

MOMENTUM, NESTEROV, GRADIENT = DirectionKind.MOMENTUM, DirectionKind.NESTEROV, DirectionKind.GRADIENT

TOOLS = os.path.join(os.path.dirname(triton.backends.nvidia.__file__), "bin")
TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
TYPES = {
    "table": "*i64", "constants": "*fp32", "tiles": "*i32", "ready": "*i32", "thresholds": "*fp32", "search": "*i64",
    "kept": "*i32", "kept_counts": "*i32", "clipped": "i32", "estimates": "*fp64", "q": "*fp64", "histogram": "*i64",
    "shift": "i32", "multiples": "*fp64", "totals": "*i64", "squares": "*fp64", "inverse": "*fp32",
    "partials": "*fp64", "factors": "*fp32", "arrivals": "*i32", "excess": "*i64",
    "shapes": "*i64", "levels": "*fp32", "sums": "*i64", "zeros": "*i32", "scales": "*fp32", "found": "*fp32",
    "counts": "*i32", "decisions": "*fp32", "sketches": "*fp32", "looks": "*fp32", "log_sizes": "*fp32",
    "guards": "*fp32", "slopes": "*fp32", "powers": "*fp32", "sizes": "*fp32", "candidates": "i32", "margin": "fp32",
    "beta": "fp32",
    "rows": "*i64", "values": "*fp32", "n": "i64", "stride": "i64", "parts": "i32", "level": "i64",
}  # fmt: skip
SHAPE = {"TILE": GPUBackend.tile, "BLOCK": 512, "ROOM": GPUBackend.tile // 16}


RMS = {"": kernels.NO_RMS.value, "measure": kernels.MEASURE.value, "restore": kernels.RESTORE.value}


def walk(update, look, operator=1, limits=False, rms="", half=False):
    flags = {"UPDATE": update, "LOOK": look, "OPERATOR": operator, "LIMITS": limits, "RMS": RMS[rms], "HALF": half}
    return kernels.walk, {**flags, **SHAPE}


def count_digit(precision, first, last, aligned=True):
    flags = {"PRECISION": precision.value, "FIRST": first, "LAST": last, "ALIGNED": aligned}
    return digits.count_digit, {**flags, "TILE": quantiles.TILE, "BLOCK": 512 if precision == digits.FP32 else 1024}


def choose_bin(precision, first, last):
    return digits.choose_bin, {"PRECISION": precision.value, "NONZERO": True, "FIRST": first, "LAST": last}


def momentum_walk(kind, update, look, output, limits=False):
    chosen = {"KIND": int(kind), "UPDATE": update, "LOOK": look, "OPERATOR": 1, "LIMITS": limits, "OUTPUT": output}
    return momentum.walk, {**chosen, **SHAPE}


def scaled_pass(kernel, of_gradient, **flags):
    chosen = {"OF_GRADIENT": of_gradient, **flags, "TILE": SHAPE["TILE"], "BLOCK": SHAPE["BLOCK"]}
    return kernel, chosen


def scaled_move(of_gradient, operator=1, limits=False, half=False):
    return scaled_pass(scaled.move, of_gradient, OPERATOR=operator, LIMITS=limits, HALF=half)


VARIANTS = {
    "walk: update, look, move": walk(True, True),
    "walk: update, look, move; hard, limits": walk(True, True, 2, True),
    "walk: update, look, move; half": walk(True, True, half=True),
    "walk: update, look, measure; half": walk(True, True, rms="measure", half=True),
    "walk: update, move": walk(True, False),
    "walk: update, move; half": walk(True, False, half=True),
    "walk: update, move; no clip": walk(True, False, 0),
    "walk: move": walk(False, False),
    "walk: move; limits": walk(False, False, 1, True),
    "muon: update, look, bf16": momentum_walk(NESTEROV, True, True, 2),
    "muon: bf16": momentum_walk(NESTEROV, False, False, 2),
    "muon: fp32; limits": momentum_walk(NESTEROV, False, False, 1, True),
    "sgd: update, look, move": momentum_walk(MOMENTUM, True, True, 0),
    "sgd: move": momentum_walk(MOMENTUM, False, False, 0),
    "sgd without momentum: look, move": momentum_walk(GRADIENT, True, True, 0),
    "inverse norms": (momentum.inverse_norms, {"BLOCK": 128}),
    "digit": (searching.digit, {"KIND": 0, "LAST": False, **SHAPE}),
    "digit, last": (searching.digit, {"KIND": 0, "LAST": True, **SHAPE}),
    "digit of nesterov, last": (searching.digit, {"KIND": int(NESTEROV), "LAST": True, **SHAPE}),
    "walk: measure": walk(False, False, rms="measure"),
    "walk: restore; half": walk(False, False, rms="restore", half=True),
    "locate": (searching.locate, {}),
    "choose": (searching.choose, {"LAST": False}),
    "choose, last": (searching.choose, {"LAST": True}),
    "scan": scaled_pass(scaled.scan, False, HALF=False),
    "scan; half": scaled_pass(scaled.scan, False, HALF=True),
    "scan of gradients; half": scaled_pass(scaled.scan, True, HALF=True),
    "scale": (decision.scale, {"BLOCK": 512}),
    "sketch": scaled_pass(scaled.sketch, False),
    "sketch of gradients": scaled_pass(scaled.sketch, True),
    "decide": (decision.decide, {"CHUNK": 8}),
    "scaled move": scaled_move(False),
    "scaled move; hard, limits, half": scaled_move(False, 2, True, half=True),
    "scaled move of gradients": scaled_move(True),
    "scaled move of gradients; limits, half": scaled_move(True, 1, True, half=True),
    "count_digit, first": count_digit(digits.FP32, True, False),
    "count_digit, last": count_digit(digits.FP32, False, True),
    "count_digit, first; bf16": count_digit(digits.BF16, True, False),
    "count_digit, last; fp16": count_digit(digits.FP16, False, True),
    "choose_bin, first": choose_bin(digits.FP32, True, False),
    "choose_bin, last; fp16": choose_bin(digits.FP16, False, True),
}
# The variant of each kernel with the most registers or, of those that walk memory, of each method's whole step.
LARGEST = (
    "walk: update, look, move; hard, limits",
    "walk: update, look, measure; half",
    "muon: update, look, bf16",
    "sgd: update, look, move",
    "digit of nesterov, last",
    "scan; half",
    "scaled move of gradients; limits, half",
    "count_digit, first",
)
# 128-bit loads and stores of one block of an aligned tile, in which each thread has four entries.
VECTORS = {
    "walk: update, look, move": (4, 3),  # g, m, v, p and m, v, p
    "walk: update, look, move; hard, limits": (4, 3),
    "walk: update, look, move; half": (4, 3),  # those of fp32; four entries in half precision are 64 bits
    "walk: update, look, measure; half": (4, 3),
    "walk: update, move": (4, 3),
    "walk: update, move; half": (4, 3),
    "walk: update, move; no clip": (4, 3),
    "walk: move": (3, 1),  # m, v, p and p
    "walk: move; limits": (3, 1),
    "muon: update, look, bf16": (2, 1),  # g, m and m; four entries in bf16 are 64 bits
    "muon: bf16": (2, 0),
    "muon: fp32; limits": (2, 1),
    "sgd: update, look, move": (3, 2),  # g, m, p and m, p
    "sgd: move": (2, 1),
    "sgd without momentum: look, move": (2, 1),
    "digit": (2, 0),  # m, v
    "digit, last": (2, 0),
    "digit of nesterov, last": (2, 0),  # m, g
    "walk: measure": (2, 0),  # m, v
    "walk: restore; half": (3, 1),
    "scan": (3, 2),  # g, m, v and m, v
    "scan; half": (3, 2),
    "scan of gradients; half": (1, 0),
    "scaled move": (3, 1),  # m, v, p and p
    "scaled move; hard, limits, half": (3, 1),
    "scaled move of gradients": (4, 3),
    "scaled move of gradients; limits, half": (4, 3),
    "count_digit, first": (1, 0),
    "count_digit, last": (1, 0),
    "count_digit, first; bf16": (1, 0),  # eight entries
    "count_digit, last; fp16": (1, 0),
}
# 64-bit loads and stores of the same, of gradients and parameters in bf16 and fp16, of which there is one for each.
HALF_VECTORS = {
    "walk: update, look, move; half": (2, 2),
    "walk: update, look, measure; half": (2, 2),
    "walk: update, move; half": (2, 2),
    "walk: restore; half": (0, 2),
    "scan; half": (2, 0),
    "scan of gradients; half": (2, 0),
    "scaled move; hard, limits, half": (0, 2),
    "scaled move of gradients; limits, half": (2, 2),
}


@dataclass
class Compiled:
    registers: int
    spills: int  # bytes of local memory on NVIDIA's GPUs, registers on AMD's
    loads: int  # of 128 bits
    stores: int
    half_loads: int  # of 64 bits
    half_stores: int


def compile_variant(name, target):
    function, constants = VARIANTS[name]
    if "TILE" in constants:  # for so many threads as a warp has here, as GPUBackend.block
        constants = {**constants, "BLOCK": constants["BLOCK"] * TARGETS[target].warp_size // 32}
    types = {**TYPES, "x": "*i32" if constants.get("PRECISION", 0) == digits.FP32.value else "*i16"}
    signature = {key: types[key] for key in function.arg_names if key not in constants}
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
    # What does not fit into registers goes to a thread's stack or other local memory: neither is used otherwise.
    spills = sum(int(re.search(rf"\b{key}:(\d+)", usage)[1]) for key in ("STACK", "LOCAL"))
    ptx = made.asm["ptx"]
    counts = [len(re.findall(rf"{kind}\.global[^;]*\.v{n}\.b32", ptx)) for n in (4, 2) for kind in ("ld", "st")]
    return Compiled(int(re.search(r"REG:(\d+)", usage)[1]), spills, *counts)


def _amd(made):
    code = made.asm["amdgcn"]
    registers, spills = (int(re.search(rf"\.{key}:\s+(\d+)", code)[1]) for key in ("vgpr_count", "vgpr_spill_count"))
    counts = [
        len(re.findall(rf"(?:global|flat|buffer)_{kind}_dwordx{n}\b", code))
        for n in (4, 2)
        for kind in ("load", "store")
    ]
    return Compiled(registers, spills, *counts)


def _tool(name, *arguments):
    return subprocess.run([os.path.join(TOOLS, name), *arguments], capture_output=True, text=True, check=True).stdout
