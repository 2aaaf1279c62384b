import subprocess
import sys

import pytest

from entryclip.cli import main
from entryclip.lab import paper as experiments

COMMANDS = "reproduce, sweep, train, diagnose, theory, report, data"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["reproduce", "nope"], f"unknown experiment 'nope': choose from {', '.join(experiments.NAMES)}, or all"),
        (["reproduce", "operators", "--out", "FILE"], "is a file: choose a folder with --out"),
        (["reproduce", "operators", "--out", "FILE/UNDER"], "Not a directory): choose another with --out"),
        (["reproduce", "operators", "--out", "/proc/nowhere"], "cannot make the folder /proc/nowhere"),
        (["reproduce", "operators", "--jobs", "0"], "--jobs must be at least 1, got 0"),
        (["reproduce", "operators", "--stale", "no"], "--stale must be one of refuse, recompute, keep, got 'no'"),
        (["reproduce", "operators", "--jobs", "x"], "--jobs: must be a whole number, got 'x'"),
        (["reproduce", "operators", "--jobs", "1.5"], "--jobs: must be a whole number, got '1.5'"),
        (["reproduce", "operators", "--jobs"], "Missing value for argument '--jobs'"),
        (["reproduce", "operators", "--job", "3"], "Unrecognized options: --job, 3; Perhaps you meant: --jobs N"),
        (["reproduce"], f"Missing from entryclip reproduce: EXPERIMENT an experiment ({', '.join(experiments.NAMES)})"),
        (["nope"], f"Unrecognized options: nope; Available subcommands: {COMMANDS}"),
        ([], f"Expected one of {{{COMMANDS}}}; For full helptext, run entryclip --help"),
        (["data"], "Expected one of {prepare, fineweb}"),
        (["data", "prepare", "--val-every", "x"], "--val-every: must be a whole number, got 'x'"),
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


def test_python_m_and_help():
    done = subprocess.run([sys.executable, "-m", "entryclip", "--help"], capture_output=True, text=True, check=True)
    assert all(command in done.stdout for command in ("reproduce", "sweep", "report"))


def test_without_the_extra_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tyro", None)
    assert main(["reproduce", "all"]) == 2
    assert "pip install 'entryclip[experiments]'" in capsys.readouterr().err
