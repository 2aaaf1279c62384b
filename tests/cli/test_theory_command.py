import pytest

from entryclip.cli import main

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
        (THEORY, "Missing value for argument '--shape'"),
        (THEORY[:-1], "Missing from entryclip theory: --shape STR of the matrix, as 768x768"),
        ([*THEORY, "8x8", "--sigma", "x"], "--sigma: must be a number, got 'x'"),
        ([*THEORY, "8x8", "--epsilon", "x"], "--epsilon: no type matching {None}|FLOAT"),
        ([*THEORY, "8x8", "--iterations", "100"], "pre-clipping needs a batch"),
        ([*THEORY, "8x8", "--epsilon", "-1"], "epsilon must be a finite number above 0, got -1.0"),
    ],
)
def test_theory_refuses(capsys, arguments, words):
    assert main(arguments) == 2
    printed = capsys.readouterr().err
    assert words in printed
    assert printed.count("\n") == 1
