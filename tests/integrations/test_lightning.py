"""In a real Lightning Trainer."""

import copy
import logging
import warnings

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

import entryclip as ec
from entryclip.integrations.lightning import ClipCallback, MonitorCallback

pytestmark = pytest.mark.filterwarnings("ignore:::(lightning|torch)")
RUNNING = ec.Clip(ec.smooth_shrinkage, ec.Running(ec.Quantile(0.9), beta=0.5))


class Model(pl.LightningModule):
    def __init__(self, make=lambda p: torch.optim.SGD(p, lr=1e-6)):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 8))
        self.make = make
        self.seen = []

    def training_step(self, batch, index):
        x, spike = batch
        return self.net(x).square().mean() + (spike * 1e4 * self.net[0].weight[3, 5]).sum()

    def configure_optimizers(self):
        return self.make(self.parameters())

    def on_before_optimizer_step(self, optimizer):  # Lightning calls it after those of the callbacks
        self.seen.append(self.net[0].weight.grad.clone())


def data(spikes=()):
    x, spiked = torch.randn(30, 4, 12, generator=torch.Generator().manual_seed(0)), torch.zeros(30, 1)
    spiked[list(spikes)] = 1
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, spiked), batch_size=None)


def trainer(folder, *callbacks, **options):
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    settings = {"max_epochs": 1, "accelerator": "cpu", "default_root_dir": folder, **quiet}
    with warnings.catch_warnings(action="ignore"):
        return pl.Trainer(callbacks=list(callbacks), **{**settings, **options})


def test_the_monitor_reads_every_nth_step_sounds_the_alarm_and_logs(tmp_path, caplog):
    callback = MonitorCallback(every=5, alarm=True)
    run = trainer(tmp_path, callback, gradient_clip_val=1.0)
    with caplog.at_level(logging.WARNING):
        run.fit(Model(), data(spikes=[17]))
    assert callback.monitor.steps == 30
    assert {reading.step for reading in callback.monitor.readings} == {5, 10, 15, 18, 20, 25, 30}
    (spike,) = callback.monitor.spikes()
    assert (spike.step, spike.batch, spike.name, spike.row, spike.column) == (18, 17, "net.0.weight", 3, 5)
    assert spike.sigma == pytest.approx(1e4, rel=0.01)  # before Lightning's clipping
    assert "one entry dominates the gradient: step 18, batch 17, net.0.weight, row 3 column 5: " in caplog.text
    assert float(run.callback_metrics["noise/spiked"]) == 0
    assert float(run.callback_metrics["noise/largest_share"]) == pytest.approx(
        max(reading.share for reading in callback.monitor.readings if reading.step == 30)
    )


@pytest.mark.parametrize(
    "make",
    [lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), lambda p: torch.optim.AdamW(p, lr=0.01)],
    ids=["sgd", "adamw"],
)
def test_the_clip_is_that_of_a_loop_by_hand_with_accumulation(tmp_path, make):
    """Two batches a step: the sum of their gradients is clipped, once."""
    model = Model(make)
    by_hand = copy.deepcopy(model.net)
    trainer(tmp_path, ClipCallback(RUNNING), accumulate_grad_batches=2).fit(model, data())
    optimizer, memory = make(by_hand.parameters()), {}
    for index, (x, _) in enumerate(data()):
        (by_hand(x).square().mean() / 2).backward()
        if index % 2 == 1:
            for name, p in by_hand.named_parameters():
                if p.ndim == 2:
                    p.grad, memory[name] = RUNNING.update(p.grad, memory.get(name) or RUNNING.init(p.grad))
            optimizer.step()
            optimizer.zero_grad()
    for ours, expected in zip(model.net.parameters(), by_hand.parameters(), strict=True):
        assert torch.equal(ours, expected)


def test_mixed_precision(tmp_path):
    """bf16: the clip sees the gradients that the optimizer would, and damps the spike."""
    model = Model()
    trainer(tmp_path, ClipCallback(ec.smooth(0.9)), precision="bf16-mixed").fit(model, data(spikes=[3]))
    sizes = [float(g.abs().max()) for g in model.seen]
    assert sizes[3] < 2 * max(sizes[2], sizes[4])  # 1e4 without a clip


def test_where_names_the_parameters_and_the_rest_is_left_alone(tmp_path):
    model, tight = Model(), ec.Clip(ec.hard_clip, ec.Fixed(2.0**-10))
    trainer(tmp_path, ClipCallback(tight, where="net.2.*")).fit(model, data())
    assert float(model.net[2].weight.grad.abs().max()) <= 2.0**-10
    assert float(model.seen[-1].abs().max()) > 2.0**-10
    with pytest.raises(ValueError, match=r"where=\['none'\] names no matrix of the module: there are net.0.weight"):
        trainer(tmp_path, ClipCallback(tight, where="none")).fit(Model(), data())
    with pytest.raises(TypeError, match="clip must be a Clip such as"):
        ClipCallback(0.99)


def test_checkpoints_carry_the_clip_and_the_monitor_on(tmp_path):
    def callbacks():
        return [MonitorCallback(every=5), ClipCallback(RUNNING)]

    whole, rest = (Model(lambda p: torch.optim.SGD(p, lr=0.1)) for _ in range(2))
    saving = ModelCheckpoint(tmp_path, "{step}", every_n_epochs=1, save_top_k=-1)
    trainer(tmp_path, *callbacks(), saving, enable_checkpointing=True, max_epochs=2).fit(whole, data())
    second = trainer(tmp_path, *callbacks(), max_epochs=2)
    second.fit(rest, data(), ckpt_path=tmp_path / "step=30.ckpt", weights_only=False)
    assert len(rest.seen) == 30
    assert second.callbacks[0].monitor.steps == 60
    for ours, expected in zip(rest.net.parameters(), whole.net.parameters(), strict=True):
        assert torch.equal(ours, expected)
