"""In a real Hugging Face Trainer, with accumulated gradients and its own clipping."""

import pytest
import torch
from transformers import Trainer, TrainingArguments

from entryclip.integrations.transformers import MonitorCallback


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(12, 16)

    def forward(self, x, spike, labels=None):
        return {"loss": self.net(x).square().mean() + (spike * 1e4 * self.net.weight[3, 5]).mean()}


@pytest.mark.filterwarnings("ignore")  # the Trainer's own
def test_it_reads_every_nth_step_and_logs(tmp_path):
    torch.manual_seed(0)
    data = [
        {"x": torch.randn(12), "spike": torch.tensor(float(i // 4 == 19)), "labels": torch.zeros(1)} for i in range(120)
    ]
    callback = MonitorCallback(every=5)
    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_steps=30,
        learning_rate=1e-6,
        logging_steps=10,
        max_grad_norm=1.0,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        train_sampling_strategy="sequential",
    )
    trainer = Trainer(Model(), arguments, train_dataset=data, callbacks=[callback])
    trainer.train()
    assert callback.monitor.steps == 30
    assert [reading.step for reading in callback.monitor.readings] == [5, 10, 15, 20, 25, 30]
    (spike,) = callback.monitor.spikes()
    assert (spike.step, spike.name, spike.row, spike.column) == (20, "net.weight", 3, 5)
    logged = [each for each in trainer.state.log_history if "noise/spiked" in each and "loss" in each]
    assert [(each["step"], each["noise/spiked"]) for each in logged] == [(10, 0.0), (20, 1.0), (30, 0.0)]
