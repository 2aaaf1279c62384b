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


@pytest.mark.parametrize("law", [["student-t", "--nu", "0.7"], ["laplace"], ["gaussian"]], ids=lambda law: law[0])
def test_theory_takes_the_law_of_the_heavy_part(capsys, law):
    assert main([*THEORY, "768x768", "--law", *law]) == 0
    printed = capsys.readouterr().out
    assert "note: the threshold is a root of the exact bias" in printed
    assert "nan" not in printed


def test_theory_takes_the_exact_bias_for_cauchy_too(capsys):
    assert main([*THEORY, "768x768", "--exact-bias"]) == 0
    printed = capsys.readouterr().out
    assert "2.566" in printed
    assert "10.06" not in printed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*THEORY, "768"], "--shape must be rows x columns, as 768x768, got '768'"),
        (THEORY, "Missing value for argument '--shape'"),
        (THEORY[:-1], "Missing from entryclip theory: --shape STR of the matrix, as 768x768"),
        ([*THEORY, "8x8", "--nu", "3"], "--nu is needed with --law student-t and means nothing without it"),
        ([*THEORY, "8x8", "--law", "student-t"], "--nu is needed with --law student-t"),
        ([*THEORY, "8x8", "--law", "levy"], "invalid choice 'levy' for argument '--law'"),
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
