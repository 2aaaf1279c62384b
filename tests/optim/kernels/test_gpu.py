"""The backend for GPUs, on a machine that has none: interpreted, compiled ahead of time, and absent."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import entryclip as ec
from entryclip.optim.kernels import backends

HERE = Path(__file__).parent


def test_the_kernels_in_the_interpreter():
    """The interpreter must be chosen before the kernels are imported: hence a process of its own."""
    pytest.importorskip("triton", reason="the kernels for GPUs are written in Triton")
    command = [sys.executable, "-m", "pytest", str(HERE / "test_interpreted.py"), "-n", "0", "--color=no"]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=HERE.parents[2])
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@pytest.fixture
def no_gpu_backend(monkeypatch):
    """Forget what was imported and warned of before, and put it back afterwards."""
    monkeypatch.setattr(backends, "BACKENDS", {"cpu": backends.CPUBackend})
    backends._load.cache_clear()
    yield
    backends._load.cache_clear()


@pytest.mark.usefixtures("no_gpu_backend")
def test_a_missing_triton_is_named_once(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    for name in ("gpu", "triton_kernels", "triton_search"):
        monkeypatch.delitem(sys.modules, f"entryclip.optim.kernels.{name}", raising=False)
    with pytest.warns(UserWarning, match=r"fused=True needs Triton on a GPU \(pip install 'entryclip\[gpu\]'\)"):
        assert backends.backend_for("cuda") is None
    assert backends.backend_for("cuda") is None


@pytest.mark.usefixtures("no_gpu_backend")
def test_a_device_without_kernels_takes_the_plain_step():
    w = torch.nn.Parameter(torch.ones(4, 4, device="meta"))
    with pytest.warns(UserWarning, match="fused=True has no kernel for meta"):
        optimizer = ec.optim.AdamW([w], fused=True)
    w.grad = torch.ones_like(w)
    optimizer.step()
    assert optimizer.state[w]["exp_avg"].is_meta


def test_importing_the_package_leaves_triton_alone():
    script = "import sys, entryclip, entryclip.optim; assert 'entryclip.optim.kernels.gpu' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
