import itertools

import pytest
import torch

from entryclip.cli import main
from entryclip.lab.lm.train.probe_inputs import from_checkpoint
from entryclip.lab.lm.train.run import Run
from entryclip.lab.lm.train.settings import Settings


@pytest.fixture(scope="module")
def run(shards, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    settings = Settings.quick(steps=12, eval_every=12, sequences=4, length=32, eval_tokens=256)
    found = Run(settings, shards, folder, save_every=6, keep=0)
    found.advance()
    return found, folder


def test_model_loss_and_the_samples_that_would_have_come_next(run):
    trained, folder = run
    model, loss, batches = from_checkpoint(folder)
    for name, p in model.named_parameters():
        assert torch.equal(p, dict(trained.trainer.model.named_parameters())[name])
    x, y = next(trained.trainer.batches)
    taken = list(itertools.islice(batches, 4))
    assert torch.equal(torch.cat([tokens for tokens, _ in taken]), x)
    assert loss(model, (x, y)).item() == pytest.approx(trained.trainer.loss(x, y).item(), rel=1e-6)


def test_an_earlier_checkpoint(run):
    early, _, _ = from_checkpoint(run[1] / "checkpoints" / "step_000006")
    late, _, _ = from_checkpoint(run[1])
    assert not torch.equal(early.lm_head.weight, late.lm_head.weight)


def test_diagnose_a_trained_model(run, tmp_path, capsys):
    arguments = ["--samples", "10", "--directions", "2", "--where", "blocks.1.*", "--out", str(tmp_path)]
    assert main(["diagnose", "--checkpoint", str(run[1]), *arguments]) == 0
    said = capsys.readouterr().out
    assert "blocks.1.mlp.c_fc.weight" in said
    assert (tmp_path / "diagnoses" / run[1].name / "rows.jsonl").exists()
    assert "blocks.1.mlp.c_fc.weight" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("arguments", [[], ["model.py:make", "--checkpoint", "x"]])
def test_one_of_the_two_must_be_given(arguments, tmp_path, capsys):
    assert main(["diagnose", *arguments, "--out", str(tmp_path)]) == 2
    assert "FILE.py:FUNCTION, or a trained one by --checkpoint FOLDER: one of the two" in capsys.readouterr().err


def test_no_checkpoint_there(tmp_path, capsys):
    assert main(["diagnose", "--checkpoint", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert f"no checkpoint in {tmp_path}" in capsys.readouterr().err
