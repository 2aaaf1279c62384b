"""What the package promises as a whole: its layers, its names and what importing it costs."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import entryclip

SOURCE = Path(entryclip.__file__).parent

# A module imports only from those above it in this list.
LAYERS = [
    ["lazy"],
    ["arrays"],
    ["operators"],
    ["layout"],
    ["dtensor"],
    ["quantiles"],
    ["scales"],
    ["thresholds"],
    ["norm_thresholds"],
    ["log_scales"],
    ["efficiency"],
    ["auto_threshold"],
    ["clip"],
    ["standardize"],
    ["matrix"],
    ["noise"],
    ["theory"],
    ["optim"],
    ["diagnostics"],
    ["testing"],
    ["integrations"],
    ["lab"],
    ["cli"],
    ["__main__"],
]
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
LAB = ["engine", "lm", "paper", "diagnosis", "report"]  # in the same direction, inside lab


def room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_names(path: Path) -> set[str]:
    """The dotted names of the package that a file imports, wherever in it the import stands."""
    package = ["entryclip", *path.relative_to(SOURCE).parts[:-1]]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            base = (
                [*package[: len(package) - node.level + 1], *(node.module or "").split(".")]
                if node.level
                else (node.module or "").split(".")
            )
            base = [part for part in base if part]
            names = [".".join([*base, name]) for name in names]
        found |= {name for name in names if name.startswith("entryclip.")}
    return found


def imported_rooms(path: Path) -> set[str]:
    return {name.split(".")[1] for name in imported_names(path)} & LEVEL.keys()


def imported_lab_rooms(path: Path) -> set[str]:
    return {name.split(".")[2] for name in imported_names(path) if name.startswith("entryclip.lab.")} & set(LAB)


FILES = [path for path in sorted(SOURCE.rglob("*.py")) if path != SOURCE / "__init__.py"]


def file_name(path: Path) -> str:
    return str(path.relative_to(SOURCE))


@pytest.mark.parametrize("path", FILES, ids=file_name)
def test_layers(path):
    for other in imported_rooms(path):
        assert LEVEL[other] <= LEVEL[room(path)], f"{file_name(path)} imports {other}, which stands below it"


@pytest.mark.parametrize("path", [path for path in FILES if room(path) == "lab"], ids=lambda path: path.stem)
def test_layers_of_the_lab(path):
    ours = path.relative_to(SOURCE / "lab").parts[0]
    for other in imported_lab_rooms(path) if ours in LAB else ():
        assert LAB.index(other) <= LAB.index(ours), f"lab/{ours} imports lab/{other}, which stands below it"


def test_the_library_never_imports_the_lab():
    importing = [path for path in FILES if room(path) not in ("lab", "cli") and "lab" in imported_rooms(path)]
    assert importing == []


def test_the_layer_test_sees_imports():
    assert imported_rooms(SOURCE / "clip.py") == {"arrays", "operators", "dtensor", "thresholds", "auto_threshold"}
    assert imported_rooms(SOURCE / "cli" / "report.py") >= {"lab"}
    assert imported_lab_rooms(SOURCE / "lab" / "report" / "sections.py") == {"engine", "paper", "diagnosis", "report"}


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_import_brings_in_nothing_heavy():
    loaded = json.loads(run("import entryclip, sys, json; print(json.dumps(sorted(sys.modules)))"))
    for heavy in ("torch", "numpy", "jax", "matplotlib", "scipy", "rich", "tyro", "jinja2", "joblib"):
        assert heavy not in loaded


def test_the_names_bring_in_torch_and_numpy_alone():
    use = "[getattr(entryclip, name) for name in entryclip.__all__]"
    loaded = json.loads(run(f"import entryclip, sys, json; {use}; print(json.dumps(sorted(sys.modules)))"))
    assert "torch" in loaded
    for heavy in ("jax", "matplotlib", "scipy", "rich", "tyro", "jinja2", "joblib", "entryclip.testing"):
        assert heavy not in loaded


def test_import_costs_little_beyond_torch():
    use = "import entryclip; [getattr(entryclip, name) for name in entryclip.__all__]"
    seconds = f"import time, torch, numpy; t = time.perf_counter(); {use}; print(time.perf_counter() - t)"
    assert min(float(run(seconds)) for _ in range(3)) < 0.3


def test_training_loads_neither_compiler_nor_sharding():
    """Each of them takes about as long to import as torch itself, in every process that trains."""
    use = "import sys, entryclip.lab.lm; entryclip.optim.build; from entryclip.lab.paper import pretraining"
    assert (
        run(
            f"{use}; print([name for name in ('torch._dynamo', 'torch.distributed.fsdp') if name in sys.modules])"
        ).strip()
        == "[]"
    )


def test_public_names():
    assert all(hasattr(entryclip, name) for name in entryclip.__all__)
    assert all(getattr(entryclip, name).__doc__ for name in entryclip.__all__)
    assert set(dir(entryclip)) >= set(entryclip.__all__)
    assert "Step" not in dir(entryclip)
    assert entryclip.testing.check_operator  # loaded on first use
    assert "testing" in dir(entryclip)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        entryclip.nonsense  # noqa: B018


def test_every_public_function_shows_an_example():
    for name in entryclip.__all__:
        assert ">>>" in (getattr(entryclip, name).__doc__ or ""), f"{name} has no example"
