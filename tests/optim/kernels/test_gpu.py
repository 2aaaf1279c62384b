"""The backend for GPUs, on a machine that has none: interpreted, compiled ahead of time, and absent."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import entryclip as ec
from entryclip.optim import staged
from entryclip.optim.kernels import backends
from entryclip.quantiles import device

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    "files", [("", "_quantiles"), ("_half", "_capture"), ("_momentum", "_sharded"), ("_auto",)], ids=str
)
def test_the_kernels_in_the_interpreter(files, pytestconfig):
    """The interpreter must be chosen before the kernels are imported: hence a process of its own."""
    pytest.importorskip("triton", reason="the kernels for GPUs are written in Triton")
    options = ["-n", "0", "--color=no", "-m", pytestconfig.option.markexpr]
    command = [sys.executable, "-m", "pytest", *(str(HERE / f"test_interpreted{name}.py") for name in files), *options]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=HERE.parents[2])
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def test_a_missing_triton_is_named_once():
    script = (
        "import sys, warnings; sys.modules['triton'] = None\n"
        "from entryclip.optim.kernels.backends import backend_for\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    assert backend_for('cuda') is None and backend_for('cuda') is None\n"
        "(warning,) = caught\n"
        "assert \"fused=True needs Triton on a GPU (pip install 'entryclip[gpu]')\" in str(warning.message)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_quantiles_without_triton():
    """`quantile_abs` has another way then, without a word."""
    script = (
        "import sys, warnings; sys.modules['triton'] = None; warnings.simplefilter('error')\n"
        "from entryclip.quantiles import device\n"
        "assert device._load_kernels() is None\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton works here")
def test_quantiles_where_triton_fails():
    pytest.importorskip("triton", reason="the kernels for GPUs are written in Triton")
    device._load_kernels.cache_clear()
    with pytest.warns(UserWarning, match="Triton fails here, so that quantiles take more launches"):
        assert device._load_kernels() is None


def test_quantiles_that_the_kernels_do_not_read():
    for x in (torch.ones(2, 8), torch.ones(2, 8, device="meta")):
        assert device._kernels_for(x) is None


def test_a_device_without_kernels_takes_the_plain_step(monkeypatch):
    """A tensor on `meta` stands for one on such a device; as itself it is refused."""
    monkeypatch.setattr(staged, "refuse_meta", lambda *_: None)
    backends._load.cache_clear()
    w = torch.nn.Parameter(torch.ones(4, 4, device="meta"))
    optimizer = ec.optim.AdamW([w], fused=True)
    w.grad = torch.ones_like(w)
    with pytest.warns(UserWarning, match="fused=True has no kernel for meta"):
        optimizer.step()
    assert optimizer.state[w]["exp_avg"].is_meta


def test_importing_the_package_leaves_triton_alone():
    script = "import sys, entryclip, entryclip.optim; assert 'entryclip.optim.kernels.gpu' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
