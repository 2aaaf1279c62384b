"""A command whose packages are missing says in one line, before it starts, which extra to install."""

import sys

import pytest

from entryclip.cli import main


@pytest.mark.parametrize(
    ("arguments", "package", "words"),
    [
        (["train", "--quick"], "safetensors", "train needs safetensors: [lm]"),
        (["train", "--quick"], "matplotlib", "train needs matplotlib: [lab]"),
        (["train", "--quick", "--tensorboard"], "tensorboard", "the package tensorboard: [tensorboard]"),
        (["data", "prepare"], "rich", "data needs rich: [lab]"),
        (["data", "prepare", "a.txt"], "tokenizers", "data needs tokenizers: [lm]"),
        (["data", "prepare", "a.txt", "--tokenizer", "gpt2"], "tiktoken", "data needs tiktoken: [lm]"),
        (["data", "fineweb", "--out", "new"], "huggingface_hub", "data needs huggingface_hub: [lm]"),
        (["reproduce", "operators"], "joblib", "reproduce needs joblib: [lab]"),
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
