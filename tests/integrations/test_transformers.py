"""In a real Hugging Face Trainer, with accumulated gradients and its own clipping."""

import logging
import warnings

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import entryclip as ec
from entryclip.integrations.transformers import Build, ClipReportCallback, MonitorCallback

pytestmark = pytest.mark.filterwarnings("ignore:::(torch|transformers|accelerate|tensorboard)")


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Linear(12, 16)

    def forward(self, x, spike, labels=None):
        return {"loss": self.net(x).square().mean() + (spike * 1e4 * self.net.weight[3, 5]).mean()}


def arguments(folder, **options):
    defaults = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 2,
        "learning_rate": 1e-6,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "train_sampling_strategy": "sequential",
    }
    return TrainingArguments(**{**defaults, **options})


def spiked_data():
    """The data of 30 steps of two batches of two; the fourth example of step 18 has the spike."""
    torch.manual_seed(0)
    examples = range(120)
    return [{"x": torch.randn(12), "spike": torch.tensor(float(i == 71)), "labels": torch.zeros(1)} for i in examples]


def test_alarm_and_metrics_reach_the_logs_and_tensorboard(tmp_path, caplog, monkeypatch):
    """The reporting callbacks run before those of the user: what reaches them is read from the event file."""
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "events"))
    monitor, report = MonitorCallback(every=5, alarm=True), ClipReportCallback(every=6)
    options = {"gradient_accumulation_steps": 2, "max_steps": 30, "logging_steps": 10, "report_to": ["tensorboard"]}
    trainer = Trainer(
        Model(),
        arguments(tmp_path, **options),
        train_dataset=spiked_data(),
        callbacks=[monitor],
        optimizer_cls_and_kwargs=(Build, {"method": "adamw"}),
    )
    trainer.add_callback(report)
    with caplog.at_level(logging.WARNING):
        trainer.train()
    assert monitor.monitor.steps == 30
    (spike,) = monitor.monitor.spikes()
    assert (spike.step, spike.batch, spike.name, spike.row, spike.column) == (18, "34-35", "net.weight", 3, 5)
    assert "one entry dominates the gradient: step 18, batch 34-35, net.weight, row 3 column 5: " in caplog.text
    logged = [each for each in trainer.state.log_history if "noise/spiked" in each and "loss" in each]
    assert [(each["step"], each["noise/spiked"] > 0) for each in logged] == [(10, False), (20, True), (30, False)]

    (folder,) = {path.parent for path in tmp_path.rglob("events.out*")}
    events = EventAccumulator(str(folder)).Reload()
    spiked = {event.step: event.value for event in events.Scalars("train/noise/spiked")}
    assert spiked == {each["step"]: pytest.approx(each["noise/spiked"]) for each in logged}
    outliers = {event.step: event.value for event in events.Scalars("train/clip/outlier_scales")}
    assert list(outliers) == [20]  # of the report of step 18
    assert outliers[20] > 100
    kept = {event.step: event.value for event in events.Scalars("train/clip/rms_kept")}
    assert list(kept) == [10, 20, 30]
    assert all(0.3 < value < 0.9 for value in kept.values())
    assert [row.name for row in report.report] == ["net.weight"]  # that of step 30
    assert report.batch == 60  # the next one's


def gpt2():
    torch.manual_seed(0)
    options = {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(vocab_size=40, n_positions=16, n_embd=16, n_layer=1, n_head=2, **options))


def tokens():
    g = torch.Generator().manual_seed(1)
    rows = torch.randint(0, 40, (16, 16), generator=g)
    return [{"input_ids": row, "labels": row} for row in rows]


def train(folder, resume=None, **options):
    settings = {"max_steps": 6, "learning_rate": 1e-2, "weight_decay": 0.3, "logging_steps": 1, "max_grad_norm": 0.0}
    given = {**settings, "lr_scheduler_type": "cosine", "save_strategy": "steps", "save_steps": 3, **options}
    monitor = MonitorCallback(every=2)
    trainer = Trainer(
        gpt2(),
        arguments(folder, **given),
        train_dataset=tokens(),
        callbacks=[monitor],
        optimizer_cls_and_kwargs=(Build, {"method": "muon", "other_lr": 3e-3, "fp32_state": True}),
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer, monitor, [each["loss"] for each in trainer.state.log_history if "loss" in each]


def test_build_routes_gpt2_and_a_checkpoint_resumes_to_the_same_losses(tmp_path):
    trainer, _, losses = train(tmp_path / "whole")
    groups = trainer.optimizer.param_groups
    where = {name: group for group in groups for name in group["param_names"]}
    fused = where["transformer.h.0.attn.c_attn.weight"]
    assert (fused["method"], fused["transposed"], fused["blocks"], fused["initial_lr"]) == ("muon", True, 3, 1e-2)
    assert where["transformer.wte.weight"]["role"] == "embedding"  # tied to the head
    assert (where["transformer.wte.weight"]["post"], where["transformer.wte.weight"]["initial_lr"]) == (None, 3e-3)
    assert where["transformer.h.0.ln_1.weight"]["weight_decay"] == 0.0
    assert fused["weight_decay"] == 0.3
    assert losses[-1] < losses[0]

    resumed, monitor, again = train(tmp_path / "again", resume=str(tmp_path / "whole" / "checkpoint-3"))
    assert again == losses  # the first three are those of the checkpoint's log
    for before, after in zip(trainer.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(before, after)
    assert monitor.monitor.steps == 6


def test_half_precision(tmp_path):
    _, _, losses = train(tmp_path, bf16=True, save_strategy="no")
    assert losses[-1] < losses[0]


def test_a_norm_clip_before_muon_is_warned_about(tmp_path):
    model = Model()
    args = arguments(tmp_path, max_grad_norm=1.0)
    options = {"optimizer_cls_and_kwargs": (Build, {"method": "muon"})}
    with pytest.warns(UserWarning, match=r"max_grad_norm=1 scales all gradients down before Muon.*max_grad_norm=0.0"):
        Trainer(model, args, train_dataset=spiked_data(), **options).create_optimizer()
    with pytest.warns(UserWarning, match="max_grad_norm=1"):  # as axolotl calls it
        optimizer = Build()(model, args, method="muon")
    assert optimizer.param_groups[0]["lr"] == args.learning_rate
    with warnings.catch_warnings(action="error"):
        Build()(model, arguments(tmp_path, max_grad_norm=0.0), method="muon")
        Build()(model, args, method="adamw", lr=0.5)
        assert Build()(model, method="muon", lr=0.5).param_groups[0]["lr"] == 0.5
    assert isinstance(optimizer, ec.optim.Staged)
