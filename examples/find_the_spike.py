"""My loss spiked: which step, which batch, which entry of which parameter, and which example?

Many sensors predict many outputs, and each example has a measurement of one output alone. One reading in the data is in
the wrong unit, a thousand times too large. The monitor names the entry at the step that it happens; `clip_report` shows
it in the gradient, which Adam's normalisation hides in the update; a replay of the batch finds the example.
"""

import torch
from torch import nn

import entryclip as ec

SENSORS, OUTPUTS, BATCH, BATCHES = 64, 48, 32, 80


def measurements() -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Batches of readings (32, 64), the number of the output that was measured (32), and its value (32)."""
    g = torch.Generator().manual_seed(0)
    truth = torch.randn(OUTPUTS, SENSORS, generator=g) / 8
    batches = []
    for _ in range(BATCHES):
        x = torch.randn(BATCH, SENSORS, generator=g)
        which = torch.randint(OUTPUTS, (BATCH,), generator=g)
        batches.append((x, which, (truth[which] * x).sum(1) + 0.1 * torch.randn(BATCH, generator=g)))
    batches[57][0][21, 17] *= 1000.0  # the reading in the wrong unit
    return batches


def loss_of(model: nn.Module, x: torch.Tensor, which: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (model(x).gather(1, which[:, None])[:, 0] - y).square().mean()


def main() -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"predict": nn.Linear(SENSORS, OUTPUTS, bias=False)})["predict"]
    optimizer = ec.optim.AdamW(model.named_parameters(), lr=1e-2)
    monitor = ec.diagnostics.Monitor(model, every=20, where="*", alarm=True)
    batches = measurements()
    alarm = None
    for number, (x, which, y) in enumerate(batches):
        loss = loss_of(model, x, which, y)
        optimizer.zero_grad()
        loss.backward()
        spikes = [reading for reading in monitor.step(batch=number) if reading.spiked]
        optimizer.step()
        if number in (55, 56, 57, 58):
            print(f"step {number + 1}: loss {loss:.3g}")
        if spikes and alarm is None:
            alarm = spikes[0]
            print(f"alarm: {alarm}")
            print(f"report: {optimizer.clip_report(batch=number).outliers[0]}")
    assert alarm is not None

    x, which, y = batches[alarm.batch]  # the replay: whose gradient is it?
    shares = []
    for i in range(BATCH):
        (g,) = torch.autograd.grad(loss_of(model, x[i : i + 1], which[i : i + 1], y[i : i + 1]), model.weight)
        shares.append(float(g[alarm.place].abs()))
    worst = max(range(BATCH), key=shares.__getitem__)
    row, column = alarm.place
    print(f"replay: example {worst} of batch {alarm.batch} makes {shares[worst] / sum(shares):.0%} of that entry")
    print(f"its reading of sensor {column} is {x[worst, column]:.0f}, and its output is {row}")


if __name__ == "__main__":
    main()
