"""docs/paper-map.md answers every label of the paper; the labels are kept beside this test."""

import importlib
import re
from pathlib import Path

import pytest

from entryclip.lab import paper

HERE = Path(__file__).parent
LABELS = (HERE / "paper_labels.txt").read_text().split()
ROWS = {
    cells[1].strip("` "): cells
    for line in (HERE.parent / "docs" / "paper-map.md").read_text().splitlines()
    if len(cells := line.split("|")) == 5
}


def test_the_list_of_labels_is_the_papers():
    assert len(LABELS) == len(set(LABELS)) == 102
    counts = {kind: sum(label.startswith(kind) for label in LABELS) for kind in ("fig:", "tab:", "thm:", "lem:")}
    assert counts == {"fig:": 13, "tab:": 4, "thm:": 6, "lem:": 15}


@pytest.mark.parametrize("label", LABELS)
def test_every_label_is_answered(label):
    assert label in ROWS, f"docs/paper-map.md has no row for {label}"
    assert ROWS[label][2].strip()
    assert ROWS[label][3].strip()
    assert "planned" not in ROWS[label][3]


def test_what_is_named_as_done_exists():
    for label, cells in ROWS.items():
        for name in re.findall(r"`entryclip\.(\w+)", cells[3]):
            assert hasattr(importlib.import_module("entryclip"), name), f"{label}: entryclip.{name}"
        for name in re.findall(r"`entryclip reproduce ([\w-]+)", cells[3]):
            assert name in paper.NAMES, f"{label}: {name}"
