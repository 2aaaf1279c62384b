import json
import re

import pytest

from entryclip.cli import main
from entryclip.diagnostics.probe.text_table import HEADINGS

FILE = """
import torch
from beside import SHAPE

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gaussian, self.spiky = (torch.nn.Parameter(torch.zeros(SHAPE)) for _ in range(2))

def loss(model, number):
    g = torch.Generator().manual_seed(number)
    noise = torch.randn(2, *SHAPE, generator=g)
    noise[1].view(-1)[torch.randint(noise[1].numel(), (1,), generator=g)] = 60.0
    return (model.gaussian * noise[0]).sum() + (model.spiky * noise[1]).sum()

def make():
    return Model(), loss, range(44)

def crossed():
    large = torch.ones(SHAPE)
    large[3] *= 100
    large[:, 5] *= 100
    def scaled(model, number):
        return loss(type("Scaled", (), {"gaussian": model.gaussian * large, "spiky": model.spiky}), number)

    return Model(), scaled, range(44)

def hostile():
    model = Model()
    model.register_parameter("<b>spiky", model._parameters.pop("spiky"))
    class Seen:
        gaussian, spiky = model.gaussian, model._parameters["<b>spiky"]

    return model, lambda m, i: loss(Seen, i), range(44)

three = 3

def nothing():
    return Model(), loss

def broken():
    return Model(), lambda model, batch: model.absent(batch), range(44)

def number():
    return Model(), lambda model, batch: 3.0, range(44)

def detached():
    return Model(), lambda model, batch: loss(model, batch).detach(), range(44)

def several():
    return Model(), lambda model, batch: model.gaussian[0], range(44)

def failing():
    raise KeyError("weights")

def no_model():
    return 1, loss, range(44)

def no_batches():
    return Model(), loss, 44
"""


@pytest.fixture
def source(tmp_path):
    (tmp_path / "model.py").write_text(FILE)
    (tmp_path / "beside.py").write_text("SHAPE = (30, 40)\n")
    return tmp_path / "model.py"


def test_a_table_rows_and_a_section_of_the_report(source, tmp_path, capsys):
    out = tmp_path / "out"
    options = ["--samples", "40", "--directions", "2", "--out", str(out)]
    assert main(["diagnose", f"{source}:make", *options]) == 0
    printed = capsys.readouterr().out
    gaussian, spiky = (
        next(line for line in printed.splitlines() if line.startswith(name)) for name in ("gaussian", "spiky")
    )
    assert "none: no spikes" in gaussian
    assert "19 of 19" in spiky
    assert "1 of 2 matrices call for entry-wise clipping" in printed
    entry = r"^  spiky: sample \d+, row \d+, column \d+: \d+% of sigma_1, \S+ times the scale of its row and column$"
    assert re.search(entry, printed, re.M)
    for heading in HEADINGS:
        assert re.search(rf"^{re.escape(heading)}: \w", printed, re.M)
    folder = out / "diagnoses" / "model-make"
    assert printed.endswith(f"rows: {folder}/rows.jsonl\nreport: {out}/report.html\n")
    rows = {row["matrix"]: row for row in map(json.loads, (folder / "rows.jsonl").read_text().splitlines())}
    assert rows["spiky"]["verdict"] == "spikes"
    assert len(rows["spiky"]["spikes"]) == len(rows["spiky"]["standardized_spikes"]) == 19
    assert len(rows["gaussian"]["r_hat"]) == 2
    record = json.loads((folder / "record.json").read_text())
    assert record["config"] == {"source": f"{source}:make", "where": [], "directions": 2, "samples": 40}
    assert {"commit", "versions", "seconds", "code"} <= record.keys()
    page = (out / "report.html").read_text()
    assert "1 of 2 matrices call for entry-wise clipping" in page
    assert f"entryclip diagnose {source}:make --directions 2 --samples 40 --out {out}" in page
    assert page.count("<svg") == 1
    assert "smooth_shrinkage(q=" in page or "hard_clip(q=" in page


def test_a_matrix_of_uneven_rows_and_columns_does_not_head_the_list_of_entries(source, tmp_path, capsys):
    assert main(["diagnose", f"{source}:crossed", "--samples", "40", "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    listed = printed.partition("the entries that stand out most from their rows and columns:\n")[2].splitlines()
    assert listed[0].startswith("  spiky: ")
    assert listed[1] == "  only in the noise as it is (raw), by the scales of rows and columns: gaussian"
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Entries that stand out from their rows and columns" in page
    assert "noise as it is, which may be where a large row crosses a large column" in page


def test_names_are_shown_as_text(source, tmp_path, capsys):
    options = ["--samples", "12", "--directions", "1", "--where", "<b>*", "--out", str(tmp_path / "out")]
    assert main(["diagnose", f"{source}:hostile", *options]) == 0
    assert "<b>spiky" in capsys.readouterr().out
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<b>spiky" not in page
    assert "&lt;b&gt;spiky" in page


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("model.py", "the model must be given as FILE.py:FUNCTION, got"),
        ("model.txt:make", "the model must be given as FILE.py:FUNCTION, got"),
        ("none.py:make", "there is no file"),
        ("model.py:absent", "has no function absent"),
        ("model.py:three", "has no function three"),
        ("model.py:nothing", "must return model, loss and batches, got a tuple of 2"),
        ("model.py:no_model", "must return a torch module among the three, got int"),
        ("model.py:broken", "the loss of"),
        ("model.py:broken", "raised AttributeError (module.py, line"),
        ("model.py:number", "must return one number as a tensor with its graph, got float: return the loss itself"),
        ("model.py:detached", "got a tensor of shape () without a graph"),
        ("model.py:several", "got a tensor of shape (40,): return"),
        ("model.py:failing", "raised KeyError (model.py, line"),
        ("model.py:no_batches", "must return batches to iterate over among the three, got int"),
    ],
)
def test_what_is_wrong_is_one_line(source, tmp_path, capsys, what, words):
    assert main(["diagnose", f"{tmp_path}/{what}", "--out", str(tmp_path / "out")]) == 2
    printed = capsys.readouterr().err
    assert words in printed
    assert printed.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--where", "nope"], "where matches no matrix, got ('nope',): there are 2"),
        (["--samples", "5"], "samples must be a whole number >= 10, got 5"),
        (["--directions", "0"], "directions must be a whole number >= 1, got 0"),
    ],
)
def test_bad_options_are_one_line(source, tmp_path, capsys, options, words):
    assert main(["diagnose", f"{source}:make", *options, "--out", str(tmp_path / "out")]) == 2
    assert words in capsys.readouterr().err
