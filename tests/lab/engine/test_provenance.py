"""When saved rows are stale, and what names them: code that makes rows counts, code that draws them does not."""

import dataclasses
import importlib
import shutil
import sys
from pathlib import Path

import pytest

from entryclip.lab import paper
from entryclip.lab.engine.config_fields import added_field
from entryclip.lab.engine.provenance import Provenance, config_hash, drawing_hash, hash_modules
from entryclip.lab.engine.source_hash import PACKAGE, code_hash, source_files
from entryclip.lab.engine.study import DataSource

FILES = {
    "__init__.py": """
from entryclip.lab.engine.study import Study
from . import study
from .claims import claims
from .figures import figures

STUDY = Study("small", "", study.Config, study.run_unit, figures, {}, claims, row_modules=(study,))
""",
    "study.py": '''"""Words."""
from dataclasses import dataclass
from .helper import double

SCALE = 2

@dataclass(frozen=True)
class Config:
    """More words."""

def run_unit(config, piece):
    """Even more."""
    from .late import nothing
    return [{"x": double(SCALE)}]  # a comment

def next_units(config, rows):
    return [] if len(rows) > 3 else [{"i": 1}]
''',
    "helper.py": "def double(x):\n    return 2 * x\n",
    "late.py": "nothing = 1\n",
    "figures.py": 'from .look import COLOUR\n\ndef figures(rows):\n    return {"a": COLOUR}\n',
    "look.py": 'COLOUR = "red"\n',
    "claims.py": 'def claims(rows):\n    from .judge import limit\n    return ["it holds"]\n',
    "judge.py": "limit = 3\n",
}


@pytest.fixture
def hashes(tmp_path, monkeypatch):
    """Hashes of a study's rows and drawings, after an edit of one of its files."""
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "small"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    importlib.invalidate_caches()
    study = importlib.import_module("small").STUDY

    def compute(file="study.py", old="", new=""):
        (folder / file).write_text(FILES[file].replace(old, new))
        code_hash.cache_clear()
        found = hash_modules(study.row_modules), drawing_hash(study)
        (folder / file).write_text(FILES[file])
        return found

    yield compute
    for name in [name for name in sys.modules if name.split(".")[0] == "small"]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("file", "old", "new", "rows_change", "drawing_changes"),
    [
        ("study.py", "# a comment", "# another", False, False),
        ("study.py", '"""Even more."""', '"""Less."""', False, False),
        ("study.py", '"""Words."""\n', "", False, False),
        ("study.py", "SCALE = 2", "SCALE = 3", True, False),
        ("study.py", "len(rows) > 3", "len(rows) > 4", True, False),  # next_units
        ("helper.py", "2 * x", "x + x", True, False),
        ("figures.py", '"a"', '"b"', False, True),
        ("look.py", "red", "blue", False, True),
        ("claims.py", "it holds", "it does", False, True),
        ("judge.py", "3", "4", False, True),
        ("__init__.py", '"small", ""', '"small", "Title"', False, False),
    ],
)
def test_what_makes_the_rows_counts_and_nothing_else(hashes, file, old, new, rows_change, drawing_changes):
    (rows, drawing), (new_rows, new_drawing) = hashes(), hashes(file, old, new)
    assert (rows != new_rows) == rows_change
    assert (drawing != new_drawing) == drawing_changes


@pytest.mark.parametrize("name", paper.NAMES)
def test_the_rows_of_a_study_follow_its_own_modules_and_no_drawing(name):
    study = paper.find(name)
    files = source_files(*(Path(module.__file__) for module in study.row_modules))
    made_by = {Path(sys.modules[each.__module__].__file__) for each in (study.config, study.units, study.next_units)}
    assert made_by <= files | {PACKAGE / "lab" / "engine" / "study.py"}
    assert not [path for path in files if path.name in ("figures.py", "claims.py", "tables.py")]


def test_a_colour_of_regression_leaves_its_rows_alone_and_a_step_of_it_does_not(tmp_path):
    copy = shutil.copytree(PACKAGE, tmp_path / "entryclip", ignore=shutil.ignore_patterns("__pycache__"))
    folder = copy / "lab" / "paper" / "regression"

    def edited(file, old, new):
        text = (folder / file).read_text()
        assert old in text
        (folder / file).write_text(text.replace(old, new))
        code_hash.cache_clear()
        return code_hash(folder / "study.py")

    before = code_hash(folder / "study.py")
    assert edited("figures.py", "#c8352b", "#c83500") == before
    assert edited("claims.py", "converges", "does converge") == before
    assert edited("descent.py", "w -= factor * lr", "w -= 2 * factor * lr") != before


@dataclasses.dataclass(frozen=True)
class Config:
    steps: int = 3
    rates: tuple[float, ...] = (0.1,)


def test_a_result_is_named_by_its_study_and_fields_wherever_its_class_lives():
    twin = dataclasses.make_dataclass("Other", [("steps", int), ("rates", tuple)], frozen=True)
    twin.__module__ = "elsewhere"
    assert config_hash("a", Config()) == config_hash("a", twin(3, (0.1,)))
    assert config_hash("a", Config()) != config_hash("b", Config())
    assert config_hash("a", Config()) != config_hash("a", Config(steps=4))


def test_results_from_before_a_field_was_added_keep_their_names():
    @dataclasses.dataclass(frozen=True)
    class Later(Config):
        warmup: int = added_field(0)

    assert config_hash("a", Later()) == config_hash("a", Config())
    assert config_hash("a", Later(warmup=5)) != config_hash("a", Config())
    assert config_hash("a", Later(steps=4)) == config_hash("a", Config(steps=4))


def test_other_data_is_a_reason_and_names_the_folder():
    modules = [sys.modules[__name__]]
    then = Provenance.now(modules, DataSource(Path("data"), "one"))
    assert then.changes(modules, DataSource(Path("data"), "one")) == []
    assert then.changes(modules, DataSource(Path("data"), "two")) == ["other data than is in data now"]
    assert then.changes(modules, None) == ["data that is not there now"]
    assert Provenance.from_json(then.to_json()) == then
