import os
import re
import subprocess
import sys

import pytest

from entryclip import experiments
from entryclip.cli import main


def test_reproduce_all_says_where_the_report_is_and_shows_the_claims(tmp_path, capsys, monkeypatch):
    """With two of them; `make reproduce` runs all."""
    monkeypatch.setattr(experiments, "NAMES", ("operators", "looseness"))
    assert main(["reproduce", "all", "--quick", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert printed.endswith(f"report: {tmp_path}/report.html\n")
    assert "Claims, and what was measured" in printed
    assert "holds" in printed
    page = (tmp_path / "report.html").read_text()
    captions = [caption for name in experiments.NAMES for caption in experiments.find(name).CAPTIONS]
    assert page.count("<svg") == len(captions)
    for name in experiments.NAMES:
        assert name in printed
        assert re.search(f"entryclip reproduce {name} (--quick )?--out", page)  # the command that made it
    assert "Not here yet" not in page
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.name != "report.html"}
    assert main(["reproduce", "all", "--quick", "--out", str(tmp_path)]) == 0  # finished: nothing is touched
    printed = capsys.readouterr().out
    assert printed.count("nothing to do") == len(experiments.NAMES)
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.name != "report.html"}
    assert {path for path in before if before[path] != after[path]} <= {tmp_path}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["reproduce", "nope"], f"unknown experiment 'nope': choose from {', '.join(experiments.NAMES)}, or all"),
        (["reproduce", "operators", "--out", "FILE"], "is a file: choose a folder with --out"),
        (["reproduce", "operators", "--out", "FILE/UNDER"], "Not a directory): choose another with --out"),
        (["reproduce", "operators", "--out", "/proc/nowhere"], "cannot make the folder /proc/nowhere"),
        (["reproduce", "operators", "--jobs", "0"], "--jobs must be at least 1, got 0"),
        (["reproduce", "operators", "--stale", "no"], "--stale must be one of refuse, recompute, keep, got 'no'"),
        (["report", "EMPTY"], "no results in"),
        (["report", "FILE"], "is a file: choose the folder of the results"),
        (["sweep", "nope", "--over", "a=1"], "unknown experiment 'nope'"),
        (["sweep", "operators", "--over", "a=1"], "operators has no field 'a': choose from tau, reach, points"),
        (["sweep", "operators", "--over", "tau=1", "--over", "tau=2"], "'tau' is given twice"),
        (["sweep", "operators", "--over", "tau=-1", "--out", "NEW"], "tau=-1.0: tau must be positive"),
        (["sweep", "operators"], "nothing to sweep over: give --over"),
        (["sweep", "operators", "--over", "tau=1", "--backend", "x"], "--backend must be one of loky, dask, ray, got"),
    ],
)
def test_bad_input_is_one_line(tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").write_text("")
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert words in printed.err
    assert printed.err.count("\n") == 1
    assert printed.err.startswith("entryclip: ")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_one_line(tmp_path, capsys):
    tmp_path.chmod(0o500)
    assert main(["reproduce", "operators", "--out", str(tmp_path)]) == 2
    assert f"cannot write to {tmp_path}: choose another folder with --out" in capsys.readouterr().err


def test_sweep_says_where_its_rows_are(tmp_path, capsys):
    fields = ["--over", "tau=1,2", "--over", "points=7"]
    assert main(["sweep", "operators", *fields, "--out", str(tmp_path), "--jobs", "1"]) == 0
    printed = capsys.readouterr().out
    (rows,) = (tmp_path / "sweeps").glob("*/rows.jsonl")
    assert f"rows: {rows}\nreport: {tmp_path}/report.html\n" in printed
    assert experiments.load(rows.parent).groupby(["tau", "points"]).size().to_dict() == {(1.0, 7): 28, (2.0, 7): 28}


THEORY = ["theory", "--alpha", ".05", "--sigma", "1", "--gamma", "1", "--bound", "1", "--shape"]


def test_theory_prints_the_four_theorems(capsys):
    assert main([*THEORY, "768x768", "--epsilon", ".5"]) == 0
    printed = capsys.readouterr().out
    for words in ("post, hard", "post, smooth", "pre, hard", "pre, smooth", "threshold", "3.039", "10.06", "samples"):
        assert words in printed
    assert main([*THEORY, "8x4", "--iterations", "100", "--batch", "10"]) == 0
    assert "nuclear" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*THEORY, "768"], "--shape must be rows x columns, as 768x768, got '768'"),
        ([*THEORY, "8x8", "--iterations", "100"], "pre-clipping needs a batch"),
        ([*THEORY, "8x8", "--epsilon", "-1"], "epsilon must be a finite number above 0, got -1.0"),
    ],
)
def test_theory_refuses(capsys, arguments, words):
    assert main(arguments) == 2
    assert words in capsys.readouterr().err


def test_python_m_and_help():
    done = subprocess.run([sys.executable, "-m", "entryclip", "--help"], capture_output=True, text=True, check=True)
    assert all(command in done.stdout for command in ("reproduce", "sweep", "report"))


@pytest.mark.parametrize("command", ["reproduce", "sweep"])
def test_help_names_the_experiments_and_the_choices(capsys, command):
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    text = re.sub(r"[\s│]+", " ", capsys.readouterr().out)
    assert all(name in text for name in experiments.NAMES)
    assert "goes on where it was" in text
    assert "refuse, recompute or keep" in text


def test_without_the_extra_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tyro", None)
    assert main(["reproduce", "all"]) == 2
    assert "pip install 'entryclip[experiments]'" in capsys.readouterr().err
