import pytest
import torch
from torch import nn

from entryclip.diagnostics import Monitor


def run(monitor, model, steps, spikes=(), seed=0, size=1e6):
    g = torch.Generator().manual_seed(seed)
    for step in range(1, steps + 1):
        for p in model.parameters():
            p.grad = 3 + torch.randn(p.shape, generator=g)
            if step in spikes:
                p.grad.view(-1)[17] = size
        monitor.step()


def test_a_spike_is_seen_where_and_when_it_is_and_not_after():
    """The running mean must not carry it on: with a plain one, every later reading would be spiked."""
    model = nn.Linear(40, 30, bias=False)
    monitor = Monitor(model, every=10)
    run(monitor, model, 100, spikes=(50,))
    assert [reading.step for reading in monitor.readings] == list(range(10, 101, 10))
    (spike,) = monitor.spikes()
    assert (spike.step, spike.name, spike.row, spike.column) == (50, "weight", 0, 17)
    assert spike.sigma == pytest.approx(1e6, rel=0.01)
    assert monitor.metrics()["noise/spiked"] == 0  # the latest


def test_readings_are_bounded():
    model = nn.Sequential(nn.Linear(8, 6, bias=False), nn.Linear(6, 8, bias=False))
    monitor = Monitor(model, every=1, keep=3)
    run(monitor, model, 20)
    assert [reading.step for reading in monitor.readings] == [18, 18, 19, 19, 20, 20]
    with pytest.raises(ValueError, match="keep must be a whole number of readings >= 1, got 0"):
        Monitor(model, keep=0)


def test_a_large_row_that_crosses_a_large_column_is_no_spike():
    """One entry carries most of sigma_1 of the noise as it is; over the scales of its row and column it is ordinary."""
    model, g = nn.Linear(40, 30, bias=False), torch.Generator().manual_seed(0)
    monitor = Monitor(model, every=10)
    rows, columns = torch.ones(30), torch.ones(40)
    rows[3], columns[5] = 200.0, 200.0
    for step in range(1, 41):
        model.weight.grad = rows[:, None] * torch.randn(30, 40, generator=g) * columns
        if step == 40:
            model.weight.grad[9, 9] = 300.0  # small beside the entry (3, 5), and far too large for its own row
        monitor.step()
    assert any(reading.raw_spiked for reading in monitor.readings[:-1])
    assert not any(reading.spiked for reading in monitor.readings[:-1])
    assert "row 9 column 9" in str(monitor.spikes()[0])


def test_the_mean_is_taken_off():
    """The constant gradient has rank one and sigma_1 = 104; the noise alone has sqrt(30) + sqrt(40) = 11.8."""
    model = nn.Linear(40, 30, bias=False)
    monitor = Monitor(model, every=50)
    run(monitor, model, 300)
    assert monitor.readings[-1].sigma == pytest.approx(11.8, rel=0.2)


def test_the_first_readings_wait_for_a_mean():
    model = nn.Linear(40, 30, bias=False)
    monitor = Monitor(model, every=1)
    run(monitor, model, 5)
    assert [reading.step for reading in monitor.readings] == [4, 5]
    assert Monitor(model).metrics() == {}


def test_nothing_to_read():
    """No gradient, a zero one, a frozen layer, a bad step: no reading, no crash, and bad steps leave no trace."""
    model = nn.Sequential(nn.Linear(9, 8, bias=False), nn.Linear(8, 7, bias=False), nn.Linear(7, 6, bias=False))
    model[2].requires_grad_(False)
    monitor = Monitor(model, every=1)
    g = torch.Generator().manual_seed(0)
    for step in range(8):
        model[0].weight.grad = torch.randn(8, 9, generator=g)
        if step == 6:
            model[0].weight.grad[0, 0] = float("nan")
        model[1].weight.grad = torch.zeros(7, 8) if step % 2 else None
        monitor.step()
    assert monitor.skipped == 1
    assert [(reading.step, reading.name) for reading in monitor.readings] == [
        (step, "0.weight") for step in (4, 5, 6, 8)
    ]


def test_the_gradients_are_left_alone():
    model = nn.Linear(40, 30, bias=False)
    monitor = Monitor(model, every=1)
    run(monitor, model, 5)
    kept = model.weight.grad.clone()
    monitor.step()
    assert torch.equal(model.weight.grad, kept)


def test_half_precision_and_batches_of_matrices():
    model = nn.Module()
    model.experts = nn.Parameter(torch.zeros(3, 20, 10, dtype=torch.bfloat16))
    monitor = Monitor(model, every=5)
    g = torch.Generator().manual_seed(0)
    for _ in range(5):
        model.experts.grad = torch.randn(3, 20, 10, generator=g).bfloat16()
        monitor.step()
    assert [reading.name for reading in monitor.readings] == ["experts.0", "experts.1", "experts.2"]


@pytest.mark.parametrize("every", [0, -1, 2.5, True])
def test_bad_every(every):
    with pytest.raises(ValueError, match="every must be a whole number of steps >= 1"):
        Monitor(nn.Linear(3, 3), every=every)
