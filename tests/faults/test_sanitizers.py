"""The C kernels under the sanitizers of addresses and of undefined behaviour: no access out of bounds, no overflow."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import settings

from entryclip.optim import kernels

HERE, KERNELS = Path(__file__).parent, Path(kernels.__file__).parent
DRIVERS = {"adamw.c": HERE / "sanitized_kernel.c", "scaled_adamw.c": HERE / "sanitized_scaled_kernel.c"}
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]


def build(folder, source, *flags):
    """Compile a driver around the kernel; skip where the compiler has no sanitizers."""
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("needs a C compiler")
    program = folder / "driver"
    command = [
        compiler,
        "-std=gnu11",
        "-O1",
        "-g",
        *SANITIZERS,
        *flags,
        f"-I{KERNELS}",
        f"-I{HERE}",
        str(source),
        "-lm",
    ]
    done = subprocess.run([*command, "-o", str(program)], capture_output=True, text=True)
    if done.returncode and ("asan" in done.stderr or "ubsan" in done.stderr):
        pytest.skip("the compiler has no sanitizers")
    assert done.returncode == 0, done.stderr
    return program


def run(program, seed, calls):
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
    return subprocess.run([program, str(seed), str(calls)], env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("flags", [["-march=native", "-fopenmp"], []], ids=["this machine's", "portable"])
@pytest.mark.parametrize("kernel", DRIVERS)
def test_the_kernel_is_clean(tmp_path, kernel, flags):
    program, calls = build(tmp_path, DRIVERS[kernel], *flags), 4 * settings.default.max_examples
    done = run(program, 19, calls)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == f"{calls} calls\n"


@pytest.mark.parametrize("kernel", DRIVERS)
def test_the_sanitizers_see_an_access_out_of_bounds(tmp_path, kernel):
    """One entry less than the kernel is told: else the test above would prove nothing."""
    done = run(build(tmp_path, DRIVERS[kernel], "-DMISSING=1"), 19, 20)
    assert done.returncode != 0
    assert "AddressSanitizer" in done.stderr
    assert f"/{kernel}:" in done.stderr
