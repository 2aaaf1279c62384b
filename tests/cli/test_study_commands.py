import os
import re

import pytest

from entryclip import lab
from entryclip.cli import app, main
from entryclip.lab import paper


def test_reproduce_all_says_where_the_report_is_and_shows_the_claims(tmp_path, capsys, monkeypatch):
    """With two of them; `make reproduce` runs all."""
    monkeypatch.setattr(paper, "NAMES", ("operators", "looseness"))
    assert main(["reproduce", "all", "--quick", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert printed.endswith(f"report: {tmp_path}/report.html\n")
    assert "Claims, and what was measured" in printed
    assert "holds" in printed
    page = (tmp_path / "report.html").read_text()
    captions = [caption for name in paper.NAMES for caption in paper.find(name).captions]
    assert page.count("<svg") == len(captions)
    for name in paper.NAMES:
        assert name in printed
        assert re.search(f"entryclip reproduce {name} (--quick )?--out", page)  # the command that made it
    assert "Not here yet" not in page
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.name != "report.html"}
    assert main(["reproduce", "all", "--quick", "--out", str(tmp_path)]) == 0  # finished: nothing is touched
    printed = capsys.readouterr().out
    assert printed.count("nothing to do") == len(paper.NAMES)
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.name != "report.html"}
    assert {path for path in before if before[path] != after[path]} <= {tmp_path}


def test_sweep_says_where_its_rows_are(tmp_path, capsys):
    fields = ["--over", "tau=1,2", "--over", "points=7"]
    assert main(["sweep", "operators", *fields, "--out", str(tmp_path), "--jobs", "1"]) == 0
    printed = capsys.readouterr().out
    (rows,) = (tmp_path / "sweeps").glob("*/rows.jsonl")
    assert f"rows: {rows}\nreport: {tmp_path}/report.html\n" in printed
    assert lab.load(rows.parent).groupby(["tau", "points"]).size().to_dict() == {(1.0, 7): 28, (2.0, 7): 28}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_one_line(tmp_path, capsys):
    tmp_path.chmod(0o500)
    assert main(["reproduce", "operators", "--out", str(tmp_path)]) == 2
    assert f"cannot write to {tmp_path}: choose another folder with --out" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["reproduce", "sweep"])
def test_help_names_the_studies_and_the_choices(capsys, command):
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    text = re.sub(r"[\s│]+", " ", capsys.readouterr().out)
    assert app.COMMANDS  # imported with all names, whatever the tests above replaced
    assert all(name in text for name in paper.NAMES)
    assert "goes on where it was" in text
    assert "refuse, recompute or keep" in text
