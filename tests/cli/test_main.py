import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import entryclip
from entryclip.cli import extras, main
from entryclip.lab import paper

COMMANDS = "reproduce, sweep, train, diagnose, theory, bench, report, data"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["reproduce", "nope"], f"unknown study 'nope': choose from {', '.join(paper.NAMES)}, or all"),
        (["reproduce", "operators", "--out", "FILE"], "is a file: choose a folder with --out"),
        (["reproduce", "operators", "--out", "FILE/UNDER"], "Not a directory): choose another with --out"),
        (["reproduce", "operators", "--out", "/proc/nowhere"], "cannot make the folder /proc/nowhere"),
        (["reproduce", "operators", "--jobs", "0"], "--jobs must be at least 1, got 0"),
        (["reproduce", "operators", "--stale", "no"], "--stale must be one of refuse, recompute, keep, got 'no'"),
        (["reproduce", "operators", "--jobs", "x"], "--jobs: must be a whole number, got 'x'"),
        (["reproduce", "operators", "--jobs", "1.5"], "--jobs: must be a whole number, got '1.5'"),
        (["reproduce", "operators", "--jobs"], "Missing value for argument '--jobs'"),
        (["reproduce", "operators", "--job", "3"], "Unrecognized options: --job, 3; Perhaps you meant: --jobs N"),
        (["reproduce"], f"Missing from entryclip reproduce: STUDY a study ({', '.join(paper.NAMES)})"),
        (["nope"], f"Unrecognized options: nope; Available subcommands: {COMMANDS}"),
        ([], f"Expected one of {{{COMMANDS}}}; For full helptext, run entryclip --help"),
        (["data"], "Expected one of {prepare, fineweb}"),
        (["data", "prepare", "--val-every", "x"], "--val-every: must be a whole number, got 'x'"),
        (["report", "EMPTY"], "no results in"),
        (["report", "FILE"], "is a file: choose the folder of the results"),
        (["sweep", "nope", "--over", "a=1"], "unknown study 'nope'"),
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


@pytest.mark.parametrize(
    ("absent", "arguments", "line"),
    [
        ("tyro", ["reproduce", "all"], "reproduce needs tyro: pip install 'entryclip[lab]'"),
        ("jinja2", ["report"], "report needs jinja2: pip install 'entryclip[lab]'"),
        ("tokenizers", ["train"], "train needs tokenizers: pip install 'entryclip[lm]'"),
        ("tiktoken", ["data", "prepare"], "data needs tiktoken: pip install 'entryclip[lm]'"),
        ("rich", [], f"the commands {COMMANDS} need more packages: pip install 'entryclip[lab]'"),
    ],
)
def test_without_an_extra_a_command_names_it_in_one_line(monkeypatch, capsys, absent, arguments, line):
    monkeypatch.setitem(sys.modules, absent, None)
    assert main(arguments) == 2
    assert capsys.readouterr().err == f"entryclip: {line}\n"


@pytest.mark.parametrize("option", ["--help", "-h", "--version"])
def test_help_and_version_need_no_extras(monkeypatch, capsys, option):
    for package in ("tyro", "rich", "tokenizers"):
        monkeypatch.setitem(sys.modules, package, None)
    assert main([option]) == 0
    printed = capsys.readouterr().out
    if option == "--version":
        assert printed == f"entryclip {entryclip.__version__}\n"
    else:
        for command, needed in extras.EXTRAS.items():
            assert re.search(rf"^  {command} .*\[{','.join(needed)}\]$", printed, re.MULTILINE)
        assert "not installed: pip install 'entryclip[lab,lm]'" in printed


def test_the_overview_is_of_all_commands_and_says_when_nothing_is_missing():
    assert extras.SUMMARIES.keys() == extras.EXTRAS.keys()
    assert "all of them are installed" in extras.overview()


def test_commands_of_the_lab_do_not_need_the_packages_of_the_language_model(monkeypatch, tmp_path, capsys):
    for package in extras.PACKAGES["lm"]:
        monkeypatch.setitem(sys.modules, package, None)
    assert main(["reproduce", "operators", "--quick", "--jobs", "1", "--out", str(tmp_path)]) == 0


def test_the_table_of_extras_is_that_of_the_project():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    for extra, packages in extras.PACKAGES.items():
        required = project["optional-dependencies"][extra]
        assert sorted(packages) == sorted(re.split("[<>=]", each)[0] for each in required)
    assert sorted(extras.EXTRAS) == sorted(COMMANDS.split(", "))
