"""In a real Lightning Trainer."""

import lightning.pytorch as pl
import pytest
import torch
from torch import nn

from entryclip.integrations.lightning import MonitorCallback


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 8))

    def training_step(self, batch, index):
        x, spike = batch
        return self.net(x).square().mean() + (spike * 1e4 * self.net[0].weight[3, 5]).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-6)


@pytest.mark.filterwarnings("ignore")  # Lightning's own, about loggers and workers
def test_it_reads_every_nth_step_and_logs(tmp_path):
    torch.manual_seed(0)
    x, spikes = torch.randn(30, 4, 12), torch.zeros(30, 1)
    spikes[19] = 1  # the 20th step
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, spikes), batch_size=None)
    callback = MonitorCallback(every=5)
    trainer = pl.Trainer(
        max_epochs=1,
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
        gradient_clip_val=1.0,
        default_root_dir=tmp_path,
    )
    trainer.fit(Model(), data)
    assert callback.monitor.steps == 30
    assert {reading.step for reading in callback.monitor.readings} == {5, 10, 15, 20, 25, 30}
    (spike,) = callback.monitor.spikes()
    assert (spike.step, spike.name, spike.row, spike.column) == (20, "net.0.weight", 3, 5)
    assert spike.sigma == pytest.approx(1e4, rel=0.01)  # before Lightning's clipping
    assert float(trainer.callback_metrics["noise/spiked"]) == 0
    assert float(trainer.callback_metrics["noise/largest_share"]) == pytest.approx(
        max(reading.share for reading in callback.monitor.readings if reading.step == 30)
    )
