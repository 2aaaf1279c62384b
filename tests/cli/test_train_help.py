"""What `entryclip train --help` says of every option, and the lines of a run whose output is a file."""

import dataclasses
import re

import pytest

from entryclip.cli import main, progress_lines
from entryclip.lab.lm.train.settings import Settings


@pytest.fixture
def options(monkeypatch, capsys):
    """The help as a text for each option, by name."""
    monkeypatch.setenv("COLUMNS", "400")
    with pytest.raises(SystemExit) as end:
        main(["train", "--help"])
    assert end.value.code == 0
    found = {}
    for line in (line.strip("│| ") for line in capsys.readouterr().out.splitlines()):
        if line.startswith("--"):
            name, _, line = line.partition(" ")
            found[name] = ""
        if found:
            found[name] = f"{found[name]} {line}".strip()
    return {name: " ".join(text.split()) for name, text in found.items()}


def test_every_setting_has_a_text_its_choices_and_its_real_default(options):
    for field in dataclasses.fields(Settings):
        text = options["--" + field.name.replace("_", "-")]
        assert "None" not in text
        assert re.search(r" [a-z]\w+.*\(default: [^)]+\)", text), text
    assert "N number of optimizer steps (default: 500; paper: 1770; snapshot: 1770; quick: 60)" in options["--steps"]
    assert "{paper,small,tiny}" in options["--model"]
    assert "{linear,wsd,constant}" in options["--schedule"]
    assert "(default: the paper's for the method; quick: 0.01)" in options["--lr"]
    assert "(default: post-smooth; snapshot: snapshot)" in options["--method"]
    assert "FOLDER the folder of shards" in options["--data"]


def test_a_run_whose_output_is_no_terminal_prints_lines(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(progress_lines, "EVERY", 0.0)
    text = tmp_path / "a.txt"
    text.write_text("to be or not to be, that is the question\n" * 3000)
    (tmp_path / "b.txt").write_text("whether it is nobler in the mind to suffer\n" * 300)
    data, held = tmp_path / "data", ["--held-out", str(tmp_path / "b.txt")]
    assert main(["data", "prepare", str(text), *held, "--tokenizer", "bytes", "--out", str(data)]) == 0
    assert re.search(r"^train shards: \d+\.\d of \d+\.\d MB$", capsys.readouterr().out, re.MULTILINE)
    runs = [tmp_path / "out" / name for name in ("one", "two")]
    for run, method in zip(runs, ("adamw", "post-smooth"), strict=True):
        options = ["--steps", "3", "--eval-every", "2", "--eval-tokens", "256", "--method", method]
        assert main(["train", "--quick", "--data", str(data), "--out", str(run), *options]) == 0
        printed = capsys.readouterr().out
        assert re.search(r"^step 2 of 3: loss \d\.\d+, validation \d\.\d+, [\d,]+ tokens/s$", printed, re.MULTILINE)
    _compared(runs, capsys)


def _compared(runs, capsys):
    """Two runs side by side, in the terminal and on the page of the folder they are in."""
    assert main(["report", *map(str, runs)]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"method +│ adamw +│ post-smooth", printed)
    assert "seed" not in printed  # the same in both
    out = runs[0].parent
    assert main(["report", str(out)]) == 0
    page = (out / "report.html").read_text()
    assert page.count("<svg") == 1
    assert "Training runs" in page
    assert re.search(r">two</td>.*>post-smooth</td>", page)
    assert "Not here yet" not in page
    assert main(["report", str(runs[0]), str(out)]) == 2
    assert "is no training run: give folders that" in capsys.readouterr().err
