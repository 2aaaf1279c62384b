"""Every file in examples/ runs, and prints what it is there to show."""

import contextlib
import importlib.util
import io
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
pytestmark = pytest.mark.filterwarnings("ignore:::(lightning|torch|transformers|accelerate|heavyball|torchtitan)")


def run(name):
    """What an example prints, run in this process."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    return printed.getvalue()


def first_and_last(printed):
    """The losses of a line `loss 0.9 -> 0.1`."""
    first, last = re.search(r"loss ([\d.]+) -> ([\d.]+)", printed).groups()
    return float(first), float(last)


def test_plain_loop():
    printed = run("plain_loop")
    losses = [float(loss) for loss in re.findall(r"^step +\d+: loss ([\d.]+)$", printed, re.MULTILINE)]
    assert losses[-1] < 0.7 * losses[0]
    assert re.search(r"^2.weight +128 x 512 +hidden +muon +0.02 +pre smooth_shrinkage", printed, re.MULTILINE)
    assert re.search(r"^\d.weight \(pre\) row \d+ col \d+: ", printed, re.MULTILINE)


def test_find_the_spike():
    printed = run("find_the_spike")
    place = r"row (\d+) column 17"
    (row,) = re.search(rf"^alarm: step 58, batch 57, weight, {place}: ", printed, re.MULTILINE).groups()
    assert re.search(rf"^report: batch 57, weight \(gradient\) row {row} col 17: ", printed, re.MULTILINE)
    assert re.search(r"^replay: example 21 of batch 57 makes (9\d|100)% of that entry$", printed, re.MULTILINE)
    assert f"and its output is {row}" in printed


def test_huggingface_gpt2():
    printed = run("huggingface_gpt2")
    losses = [float(loss) for loss in re.findall(r"'step': [\d.]+, 'loss': ([\d.]+)", printed)]
    assert len(losses) == 3
    assert losses[-1] < losses[0]
    assert re.search(r"^transformer.h.0.attn.c_attn.weight .* hidden +muon .*blocks=3", printed, re.MULTILINE)


def test_lightning_module(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed = run("lightning_module")
    first, last = first_and_last(printed)
    assert last < 0.5 * first
    assert "in 100 steps" in printed
    assert "8 readings, 0 spikes" in printed


def test_optax_mlp():
    printed = run("optax_mlp")
    losses = [first_and_last(line) for line in printed.splitlines()]
    assert len(losses) == 2
    assert all(last < 0.5 * first for first, last in losses)
    assert printed.count("compiled 1 time") == 2


def test_fsdp2():
    """In a process of its own: it starts others, which import it by its name."""
    done = subprocess.run([sys.executable, EXAMPLES / "fsdp2.py"], capture_output=True, text=True, check=True)
    first, last = map(float, re.findall(r"^step +\d+: loss ([\d.]+)$", done.stdout, re.MULTILINE))
    assert last < 0.5 * first
    assert "2.weight is (64, 64), on this process (32, 64)" in done.stdout


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("heavyball_adamw", "heavyball"),
        ("emerging_optimizers_muon", "emerging_optimizers"),
        ("torchtitan_container", "torchtitan"),
    ],
)
def test_other_optimizers(name, package):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    if package == "emerging_optimizers" and sys.version_info < (3, 12):
        pytest.skip("Emerging-Optimizers needs Python 3.12")
    first, last = first_and_last(run(name))
    assert last < 0.7 * first


def test_tutorial_notebook():
    """The cells in order, in one namespace, as a kernel runs them."""
    cells = json.loads((EXAMPLES / "tutorial.ipynb").read_text())["cells"]
    printed, names = io.StringIO(), {}
    with contextlib.redirect_stdout(printed):
        for cell in cells:
            if cell["cell_type"] == "code":
                exec(compile("".join(cell["source"]), f"cell {cell['id']}", "exec"), names)
    for line in (
        "largest singular value 5000 -> 50",
        "0.weight step 40 batch 39 entry (5, 17)",
        "the loss falls: True",
        "0.weight (5, 17) 10.0",
        "0.weight (post): 0.6 of the root mean square kept",
    ):
        assert line in printed.getvalue()


def test_the_list_of_examples_is_complete():
    listed = set(re.findall(r"^\| \[([\w.]+)\]", (EXAMPLES / "README.md").read_text(), re.MULTILINE))
    assert listed == {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")}
