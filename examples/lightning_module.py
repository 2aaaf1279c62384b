"""Lightning: clipped gradients for any optimizer, with accumulation, and the monitor before the clip."""

import lightning.pytorch as pl
import torch
from torch import nn

import entryclip as ec
from entryclip.integrations.lightning import ClipCallback, MonitorCallback


class Regression(pl.LightningModule):
    """A small network whose optimizer knows nothing of clips."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 16))
        self.losses: list[float] = []

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        x, y = batch
        loss = (self.net(x) - y).square().mean()
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.3, momentum=0.9)


def main() -> None:
    torch.manual_seed(0)
    x = torch.randn(1600, 32)
    y = torch.tanh(x @ torch.randn(32, 16) / 4)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8)
    monitor = MonitorCallback(every=25)
    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        accumulate_grad_batches=2,
        callbacks=[monitor, ClipCallback(ec.smooth(0.99))],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Regression()
    trainer.fit(model, loader)
    print(
        f"loss {sum(model.losses[:10]) / 10:.3f} -> {sum(model.losses[-10:]) / 10:.3f} in {trainer.global_step} steps"
    )
    print(f"{len(monitor.monitor.readings)} readings, {len(monitor.monitor.spikes())} spikes")


if __name__ == "__main__":
    main()
