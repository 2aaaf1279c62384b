import subprocess
import sys

import pytest

from entryclip.cli import main
from entryclip.experiments import NAMES, find


def test_reproduce_all_says_where_the_report_is(tmp_path, capsys):
    assert main(["reproduce", "all", "--quick", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert f"report: {tmp_path}/report.html" in printed
    assert "holds" in printed
    page = (tmp_path / "report.html").read_text()
    assert page.count("data:image/svg+xml") == sum(len(find(name).CAPTIONS) for name in NAMES)
    assert "entryclip reproduce learning-rate --quick<" in page  # the command that made it
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["reproduce", "nope"], f"unknown experiment 'nope': choose from {', '.join(NAMES)}, or all"),
        (["reproduce", "operators", "--out", "FILE"], "is a file: choose a folder with --out"),
        (["report", "EMPTY"], "no results in"),
    ],
)
def test_bad_input_is_one_line(tmp_path, capsys, arguments, words):
    (tmp_path / "FILE").write_text("")
    arguments = [str(tmp_path / word) if word.isupper() else word for word in arguments]
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert words in printed.err
    assert printed.err.count("\n") == 1


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
    assert "reproduce" in done.stdout
    done = subprocess.run(
        [sys.executable, "-m", "entryclip", "reproduce", "--help"], capture_output=True, text=True, check=True
    )
    assert all(name in done.stdout for name in NAMES)


def test_without_the_extra_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tyro", None)
    assert main(["reproduce", "all"]) == 2
    assert "pip install 'entryclip[experiments]'" in capsys.readouterr().err
