"""Every study is a folder of one shape, whose rows depend on neither its figures nor its claims."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from entryclip.lab import paper
from entryclip.lab.engine.source_hash import source_files


@pytest.mark.parametrize("name", paper.NAMES)
def test_folder(name):
    study = paper.find(name)
    assert study.name == name
    assert study.config.quick() == study.config.quick()
    folder = Path(paper.__file__).parent / name.replace("-", "_")
    assert {"__init__.py", "study.py", "figures.py", "claims.py"} <= {path.name for path in folder.glob("*.py")}


@pytest.mark.parametrize("name", paper.NAMES)
def test_rows_do_not_depend_on_figures_and_claims(name):
    files = source_files(*(Path(module.__file__) for module in paper.find(name).row_modules))
    assert not {"figures.py", "claims.py", "palette.py"} & {path.name for path in files}


@pytest.mark.parametrize("name", paper.NAMES)
def test_captions_are_words_and_not_labels(name):
    for caption in paper.find(name).captions.values():
        assert not re.search(r"\b(fig|tab|thm|eq|def|prop):|`", caption)


def test_studies_are_imported_without_matplotlib():
    code = "import sys; from entryclip.lab import paper; [paper.find(name) for name in paper.NAMES]"
    found = subprocess.run(
        [sys.executable, "-c", f"{code}; print('matplotlib' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == "False"
