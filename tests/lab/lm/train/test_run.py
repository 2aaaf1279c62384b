import json
import math
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from processes import on_processes

from entryclip.cli import main
from entryclip.lab.engine.files import alone
from entryclip.lab.lm.data.prepare import prepare
from entryclip.lab.lm.train.distributed import Processes
from entryclip.lab.lm.train.divergence import Diverged
from entryclip.lab.lm.train.run import Run
from entryclip.lab.lm.train.settings import Settings
from entryclip.lab.lm.train.trainer import Trainer
from entryclip.lab.lm.train.training_methods import TRAINING_METHODS


def settings(**changes):
    small = {"steps": 12, "eval_every": 4, "sequences": 4, "length": 32, "eval_tokens": 256, "lr": 0.01}
    return Settings.quick(**{**small, **changes})


def weights(run):
    return {name: p.detach().clone() for name, p in run.trainer.model.named_parameters()}


class Cut(Exception):
    pass


def cut_at(step):
    def progress(trainer, loss):
        if trainer.done == step:
            raise Cut

    return progress


@pytest.mark.parametrize("method", TRAINING_METHODS)
def test_a_run_that_was_cut_off_goes_on_bit_for_bit(shards, tmp_path, method):
    later = {} if TRAINING_METHODS[method].norm or TRAINING_METHODS[method].variant else {"clip_from": 2}
    whole = Run(settings(method=method, **later), shards)
    expected = whole.advance()
    for step in (3, 7, 11):
        with pytest.raises(Cut):
            Run(settings(method=method, **later), shards, tmp_path, save_every=3).advance(cut_at(step))
    last = Run(settings(method=method, **later), shards, tmp_path, save_every=3)
    assert last.trainer.done == 9
    assert last.advance() == expected
    assert all(torch.equal(p, weights(whole)[name]) for name, p in weights(last).items())
    assert [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()] == expected


@pytest.mark.parametrize(("plain", "method"), [("adamw", "adagc"), ("adamw", "stable-spam"), ("muon", "normuon")])
def test_a_branch_may_remember_more_than_its_origin(shards, tmp_path, plain, method):
    """It goes on from the moments, and what only its own method keeps begins anew."""
    origin = Run(settings(method=plain, steps=4), shards, tmp_path)
    origin.advance()
    branch = Run(settings(method=method), shards, start_from=tmp_path)
    for p, q in zip(origin.trainer.model.parameters(), branch.trainer.model.parameters(), strict=True):
        shared = origin.trainer.optimizer.state[p]
        assert all(torch.equal(shared[key], branch.trainer.optimizer.state[q][key]) for key in shared)
    assert math.isfinite(branch.trainer.step())
    assert branch.trainer.done == 5


def test_rows_and_record(shards, tmp_path):
    rows = Run(settings(), shards, tmp_path).advance()
    assert [row["step"] for row in rows] == [0, 4, 8, 10, 11, 12]
    assert [row["tokens"] for row in rows] == [128 * row["step"] for row in rows]
    assert rows[0]["loss"] is None
    assert rows[0]["lr"] == 0.01
    assert rows[-1]["val_loss"] < rows[0]["val_loss"]
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["complete"]
    assert record["settings"]["method"] == "post-smooth"
    assert record["tokens_per_second"] > 0
    assert 0 < record["optimizer_share"] < 1


def test_a_finished_run_has_nothing_to_do(shards, tmp_path):
    expected = Run(settings(), shards, tmp_path).advance()
    again = Run(settings(), shards, tmp_path)
    assert again.complete
    assert again.advance(cut_at(1)) == expected


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lr": 0.02}, "was begun with lr = 0.01, now it is 0.02: choose another --out"),
        ({"method": "muon"}, "was begun with method = post-smooth, now it is muon"),
        ({"model": "small", "compile": False}, "was begun with model = tiny, now it is small"),
    ],
)
def test_another_run_in_the_same_folder_is_refused(shards, tmp_path, changes, words):
    Run(settings(), shards, tmp_path).advance()
    with pytest.raises(ValueError, match=words):
        Run(settings(**changes), shards, tmp_path)


def test_other_data_and_other_code_are_refused(shards, tmp_path, monkeypatch):
    Run(settings(), shards, tmp_path / "run").advance()
    (tmp_path / "other.txt").write_text("something else " * 400)
    (tmp_path / "more.txt").write_text("something else " * 400)
    prepare([tmp_path / "other.txt", tmp_path / "more.txt"], tmp_path / "data", tokenizer="bytes", val_every=2)
    with pytest.raises(ValueError, match="the batches have changed: data was"):
        Run(settings(), tmp_path / "data", tmp_path / "run")
    monkeypatch.setattr("entryclip.lab.lm.train.run.code_hash", lambda path: "another")
    with pytest.raises(ValueError, match="was begun with other code: choose another --out, or --stale keep"):
        Run(settings(), shards, tmp_path / "run")
    assert Run(settings(), shards, tmp_path / "run", stale="keep").complete


def test_a_branch_goes_on_from_another_run_with_other_settings(shards, tmp_path):
    first = Run(settings(method="adamw"), shards, tmp_path / "first", save_every=4, keep=0)
    rows = first.advance()
    place = tmp_path / "first" / "checkpoints" / "step_000004"
    same = Run(settings(method="adamw", clip_from=99), shards, start_from=place)
    assert same.trainer.done == 4
    assert same.advance() == rows
    other = Run(settings(method="post-smooth"), shards, tmp_path / "other", start_from=place).advance()
    assert other[:2] == rows[:2]
    assert other[2]["loss"] != rows[2]["loss"]
    with pytest.raises(ValueError, match="was begun with start_from = "):
        Run(settings(method="post-smooth"), shards, tmp_path / "other")


def options(group):
    """Return the options of a group, without the entries that change during a run."""
    return {key: list(value) if key == "betas" else value for key, value in group.items() if key not in CHANGING}


CHANGING = ("params", "steps")


def test_a_branch_takes_the_moments_and_no_option_of_the_other_run(shards, tmp_path):
    Run(settings(method="adamw", steps=4), shards, tmp_path).advance()
    changes = {"method": "post-smooth", "weight_decay": 0.5, "other_decay": 0.25, "clip_where": ("blocks.0.*",)}
    branch = Run(settings(**changes), shards, start_from=tmp_path)
    fresh = Trainer(settings(**changes), shards)
    groups, expected = branch.trainer.optimizer.param_groups, fresh.optimizer.param_groups
    assert {group["weight_decay"] for group in groups} == {0.5, 0.25, 0.0}
    for group, other in zip(groups, expected, strict=True):
        assert group["steps"] == 4
        assert options(group) == options(other)
    first = branch.trainer.optimizer.state[groups[0]["params"][0]]
    assert first["step"] == 4
    assert first["exp_avg"].abs().sum() > 0
    branch.advance()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "muon"}, "has the state of adamw, which muon cannot continue from"),
        ({"model": "small"}, "step_000012 is of another model"),
        ({"steps": 9}, "is at step 12, beyond the 9 steps of this run"),
        ({"seed": 5}, "the batches have changed: seed was 1, now it is 5"),
    ],
)
def test_what_a_branch_cannot_be(shards, tmp_path, changes, words):
    Run(settings(method="adamw"), shards, tmp_path).advance()
    with pytest.raises(ValueError, match=words):
        Run(settings(**{"method": "adamw", **changes}), shards, start_from=tmp_path)


def test_a_new_run_with_the_weights_of_another(shards, tmp_path):
    """Fine-tuning: nothing but the weights is taken, and the attention window is that of the end."""
    first = Run(settings(method="adamw"), shards, tmp_path / "first")
    first.advance()
    tuned = Run(settings(method="muon", seed=5, steps=6), shards, tmp_path / "tuned", weights_from=tmp_path / "first")
    assert all(torch.equal(p, weights(first)[name]) for name, p in weights(tuned).items())
    assert (tuned.trainer.done, tuned.rows, len(tuned.trainer.optimizer.state)) == (0, [], 0)
    assert tuned.trainer.window == first.trainer.window > Trainer(settings(), shards).window
    expected = Run(settings(method="muon", seed=5, steps=6), shards, weights_from=tmp_path / "first").advance()
    tuned.save_every = 2
    with pytest.raises(Cut):
        tuned.advance(cut_at(5))
    again = Run(settings(method="muon", seed=5, steps=6), shards, tmp_path / "tuned", weights_from=tmp_path / "first")
    assert again.trainer.done == 4
    assert again.advance() == expected
    with pytest.raises(ValueError, match="was begun with weights_from = "):
        Run(settings(method="muon", seed=5, steps=6), shards, tmp_path / "tuned")
    places = sorted((tmp_path / "tuned" / "checkpoints").iterdir())
    branch = Run(settings(method="pre-smooth", seed=5, steps=6), shards, start_from=places[0])
    assert (branch.trainer.done, branch.trainer.window) == (4, first.trainer.window)


def test_weights_that_cannot_be_taken(shards, tmp_path):
    Run(settings(method="adamw", steps=4), shards, tmp_path / "run").advance()
    with pytest.raises(ValueError, match="is of another model"):
        Run(settings(model="small"), shards, weights_from=tmp_path / "run")
    with pytest.raises(ValueError, match="not both"):
        Run(settings(), shards, start_from=tmp_path / "run", weights_from=tmp_path / "run")
    with pytest.raises(FileNotFoundError, match="no checkpoint in"):
        Run(settings(), shards, weights_from=tmp_path)


def test_weights_know_one_tokenizer(tmp_path):
    """Two trained tokenizers of one size look alike to the model, and mean different things."""
    for name, word in (("one", "alpha beta "), ("two", "gamma delta ")):
        text = [json.dumps({"text": f"{i} {word * 40}"}) for i in range(40)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(text))
    prepare([tmp_path / "one.jsonl"], tmp_path / "data1", tokenizer="bpe:264", val_every=2)
    prepare([tmp_path / "two.jsonl"], tmp_path / "data2", tokenizer="bpe:264", val_every=2)
    prepare([tmp_path / "two.jsonl"], tmp_path / "data3", tokenizer_of=tmp_path / "data1", val_every=2)
    Run(settings(steps=1), tmp_path / "data1", tmp_path / "run").advance()
    with pytest.raises(
        ValueError,
        match=r"knows the tokens of bpe:264 .* has those of bpe:264 .*: `entryclip data prepare --tokenizer-of",
    ):
        Run(settings(steps=1), tmp_path / "data2", weights_from=tmp_path / "run")
    Run(settings(steps=1), tmp_path / "data3", weights_from=tmp_path / "run").advance()


def command(shards, out, *more):
    sizes = ["--steps", "40", "--eval-every", "10", "--sequences", "4", "--length", "32", "--eval-tokens", "256"]
    return ["train", "--quick", "--data", str(shards), "--out", str(out), *sizes, "--save-every", "4", *more]


def start(arguments):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "entryclip", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )


def wait_for(path):
    for _ in range(3000):
        if path.exists():
            return
        time.sleep(0.02)
    raise AssertionError(f"{path} did not come")


def test_kill_9_and_the_same_command_again_give_the_undisturbed_run(shards, tmp_path):
    assert main(command(shards, tmp_path / "whole")) == 0
    for step in (4, 20):
        process = start(command(shards, tmp_path / "cut"))
        wait_for(tmp_path / "cut" / "checkpoints" / f"step_{step:06d}" / "manifest.json")
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert main(command(shards, tmp_path / "cut")) == 0
    rows = [(tmp_path / name / "rows.jsonl").read_bytes() for name in ("whole", "cut")]
    assert rows[0] == rows[1]
    last = [tmp_path / name / "checkpoints" / "step_000040" / "model.safetensors" for name in ("whole", "cut")]
    assert last[0].read_bytes() == last[1].read_bytes()


def test_sigterm_says_how_to_go_on(shards, tmp_path):
    process = start(command(shards, tmp_path / "a", "--steps", "600", "--eval-every", "200"))
    wait_for(tmp_path / "a" / "record.json")
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert said.decode().startswith(
        "entryclip: stopped; what is finished is kept, and the same command goes on: entryclip"
    )
    assert said.count(b"\n") == 1


def test_disk_full_keeps_the_last_checkpoint(shards, tmp_path, monkeypatch, capsys):
    import errno

    from entryclip.lab.engine import files

    monkeypatch.setattr(files.os, "fsync", lambda handle: calls.append(handle) or full())
    calls = []

    def full():
        if len(calls) > 12:
            raise OSError(errno.ENOSPC, "No space left on device")

    assert main(command(shards, tmp_path / "a")) == 2
    assert "no space to write" in capsys.readouterr().err
    monkeypatch.undo()
    assert main(command(shards, tmp_path / "a")) == 0
    assert main(command(shards, tmp_path / "b")) == 0
    assert (tmp_path / "a" / "rows.jsonl").read_bytes() == (tmp_path / "b" / "rows.jsonl").read_bytes()


def test_the_command_shows_where_things_are(shards, tmp_path, capsys):
    assert main(command(shards, tmp_path / "a", "--method", "pre-smooth", "--tensorboard")) == 0
    said = capsys.readouterr().out
    assert "tokens in" in said
    assert "% of it in the optimizer" in said
    assert f"rows: {tmp_path / 'a' / 'rows.jsonl'}; figure: {tmp_path / 'a' / 'loss.png'}" in said
    assert (tmp_path / "a" / "loss.png").stat().st_size > 5000
    (events,) = (tmp_path / "a" / "tensorboard").iterdir()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    scalars = EventAccumulator(str(events.parent)).Reload()
    assert len(scalars.Scalars("loss")) == 40
    rows = [json.loads(line) for line in (tmp_path / "a" / "rows.jsonl").read_text().splitlines()]
    assert [point.step for point in scalars.Scalars("val_loss")] == [row["step"] for row in rows]
    assert scalars.Scalars("val_loss")[-1].value == pytest.approx(rows[-1]["val_loss"], rel=1e-6)


def test_a_second_run_in_the_same_folder_is_refused_while_the_first_is_at_it(shards, tmp_path, capsys):
    with alone(tmp_path / "rows.jsonl", "training into"):
        assert main(command(shards, tmp_path)) == 2
    assert f"another process is training into {tmp_path}: wait for it, or choose another" in capsys.readouterr().err
    assert main(command(shards, tmp_path)) == 0
    assert "parameters, 257 tokens in the vocabulary" in capsys.readouterr().out


def test_divergence_ends_with_code_1(shards, tmp_path, capsys):
    assert main(command(shards, tmp_path / "a", "--lr", "1e30", "--method", "adamw")) == 1
    said = capsys.readouterr().err
    assert "training stopped at step" in said
    assert " at " in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--preset", "large"), "--preset must be one of small, paper, snapshot, quick, got 'large'"),
        (("--method", "adam"), "unknown method 'adam': choose from adamw"),
        (("--steps", "1000000"), "too little data for 1,000,000 steps"),
        (("--save-every", "-1"), "save_every and keep must be 0 or more, got -1 and 2"),
        (("--strategy", "dp"), "strategy must be one of ddp, fsdp, got 'dp'"),
    ],
)
def test_bad_options_are_one_line(shards, tmp_path, capsys, more, words):
    assert main(command(shards, tmp_path / "a", *more)) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_where_to_clip_may_be_said_several_times_and_a_run_goes_on_with_it(shards, tmp_path):
    where = ("--clip-where", "blocks.0.*", "--clip-where", "blocks.1.mlp.*")
    assert main(command(shards, tmp_path, *where)) == 0
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["settings"]["clip_where"] == ["blocks.0.*", "blocks.1.mlp.*"]
    assert main(command(shards, tmp_path, *where)) == 0
    assert main(command(shards, tmp_path)) == 2  # another run


def test_the_papers_model_asks_for_the_papers_data(tmp_path, capsys):
    assert main(["train", "--preset", "paper", "--out", str(tmp_path)]) == 2
    assert "needs data: `entryclip data fineweb --out data/fineweb`, then --data" in capsys.readouterr().err


SLOW = {"steps": 20, "lr": 0.003, "other_lr": 0.003}  # so that roundings do not grow
KINDS = [(strategy, method) for strategy in ("ddp", "fsdp") for method in ("post-smooth", "pre-smooth")]


def together(rank, shards, folder):
    for strategy, method in KINDS:
        wanted, out = settings(**SLOW, method=method, accumulate=2), folder / strategy / method
        processes = Processes(rank, 2, strategy)
        rows = Run(wanted, shards, out, processes=processes, save_every=10).advance()
        assert Run(wanted, shards, out, processes=processes).rows == rows


def test_two_processes_have_the_curve_of_one(shards, tmp_path):
    on_processes(2, together, tmp_path, shards, tmp_path)
    for strategy, method in KINDS:
        expected = Run(settings(**SLOW, method=method), shards).advance()
        alone = Run(settings(**SLOW, method=method, accumulate=2), shards, tmp_path / strategy / method)
        assert alone.complete
        assert [row["step"] for row in alone.rows] == [row["step"] for row in expected]
        for a, b in zip(alone.rows, expected, strict=True):
            assert a["val_loss"] == pytest.approx(b["val_loss"], abs=1e-4)
            assert b["loss"] is None or a["loss"] == pytest.approx(b["loss"], abs=1e-4)
        assert alone.trainer.evaluate() == pytest.approx(alone.rows[-1]["val_loss"], abs=1e-5)  # their weights, on one


BRANCH = {"method": "post-smooth", "weight_decay": 0.5, "clip_where": ("blocks.0.*",), "lr": 0.003, "eval_tokens": 288}


def branch_and_fail(rank, shards, folder):
    for strategy in ("ddp", "fsdp"):
        processes = Processes(rank, 2, strategy)
        branch = Run(settings(**BRANCH), shards, folder / strategy, processes=processes, start_from=folder / "base")
        branch.advance()
        trainer = Trainer(settings(), shards, processes)
        if rank == 1:
            trainer.model.blocks[1].mlp.register_forward_hook(lambda module, inputs, output: output * math.inf)
        with pytest.raises(Diverged, match=r"the output of blocks\.1\.mlp is nan at"):  # on both
            trainer.step()


def test_two_processes_branch_as_one_and_both_know_what_one_met(shards, tmp_path):
    Run(settings(method="adamw", steps=4, lr=0.003), shards, tmp_path / "base").advance()
    on_processes(2, branch_and_fail, tmp_path, shards, tmp_path)
    expected = Run(settings(**BRANCH), shards, start_from=tmp_path / "base").advance()
    for strategy in ("ddp", "fsdp"):
        rows = [json.loads(line) for line in (tmp_path / strategy / "rows.jsonl").read_text().splitlines()]
        assert [row["val_loss"] for row in rows] == pytest.approx([row["val_loss"] for row in expected], abs=1e-4)


def test_torchrun(shards, tmp_path):
    assert main(command(shards, tmp_path / "one")) == 0
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--standalone",
        "-m",
        "entryclip",
    ]
    done = subprocess.run([*torchrun, *command(shards, tmp_path / "two")], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("validation loss") == 1
    one, two = (
        [json.loads(line) for line in (tmp_path / name / "rows.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    )
    assert [row["val_loss"] for row in two] == pytest.approx([row["val_loss"] for row in one], abs=1e-3)
