"""A command whose packages are missing says in one line, before it starts, which extra to install."""

import sys

import pytest

from entryclip.cli import main


@pytest.mark.parametrize(
    ("arguments", "package", "words"),
    [
        (["train", "--quick"], "safetensors", "entryclip train needs the package safetensors: [lm]"),
        (["train", "--quick"], "matplotlib", "entryclip train needs the package matplotlib: [experiments]"),
        (["train", "--quick", "--tensorboard"], "tensorboard", "the package tensorboard: [tensorboard]"),
        (["data", "prepare"], "rich", "entryclip data prepare needs the package rich: [experiments]"),
        (["data", "prepare", "a.txt"], "tokenizers", "turning text into tokens needs the package tokenizers: [lm]"),
        (["data", "prepare", "a.txt", "--tokenizer", "gpt2"], "tiktoken", "needs the package tiktoken: [lm]"),
        (["data", "fineweb", "--out", "new"], "huggingface_hub", "needs the package huggingface_hub: [lm]"),
    ],
)
def test_a_missing_package_is_one_line_that_names_the_extra(tmp_path, monkeypatch, capsys, arguments, package, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("a text")
    monkeypatch.setitem(sys.modules, package, None)
    assert main(arguments) == 2
    said = capsys.readouterr().err
    needed, extra = words.split(": ")
    assert f"{needed}: pip install 'entryclip{extra}'\n" in said
    assert said.count("\n") == 1
