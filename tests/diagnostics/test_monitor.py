import pytest
import torch
from torch import nn

from entryclip.diagnostics import Monitor
from entryclip.diagnostics.spike_screen import dominant_size


def run(monitor, model, steps, spikes=(), seed=0, size=1e6):
    g = torch.Generator().manual_seed(seed)
    for step in range(1, steps + 1):
        for p in model.parameters():
            p.grad = 3 + torch.randn(p.shape, generator=g)
            if step in spikes:
                p.grad.view(-1)[17] = size
        monitor.step(batch=step - 1)


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


def test_the_alarm_names_step_batch_parameter_row_and_column():
    """Between two readings, in a step with larger gradients than the others, with no false alarm in 200 steps."""
    model, g = nn.Sequential(nn.Linear(40, 30), nn.Linear(30, 60)), torch.Generator().manual_seed(0)
    alarmed, quiet = Monitor(model, every=50, alarm=True), Monitor(model, every=50)
    for step in range(1, 201):
        for p in model.parameters():
            p.grad = (0.3 + torch.randn(p.shape, generator=g)) * (4.0 if step in (70, 77) else 1.0)
        if step == 77:
            model[1].weight.grad[5, 9] = 200.0
        found = alarmed.step(batch=step - 1)
        quiet.step()
        assert bool(found) == (step == 77 or step % 50 == 0)
    (spike,) = alarmed.spikes()
    assert (spike.step, spike.batch, spike.name, spike.place) == (77, 76, "1.weight", (5, 9))
    assert str(spike).startswith("step 77, batch 76, 1.weight, row 5 column 9: ")
    assert quiet.spikes() == []
    assert alarmed.metrics(since=60)["noise/spiked"] > 0
    assert alarmed.metrics(since=200) == {}


@pytest.mark.parametrize("shape", [(16, 16), (64, 64), (30, 200)])
def test_the_alarm_misses_no_clear_spike(shape):
    """Four times as large as the least that can dominate, in rows and columns of unequal scales; no other alarm."""
    model, g = nn.Linear(*reversed(shape), bias=False), torch.Generator().manual_seed(0)
    scales = torch.exp(torch.randn(shape[0], 1, generator=g)) * torch.exp(torch.randn(shape[1], generator=g))
    size = 4 * dominant_size(*shape)
    monitor, spiked = Monitor(model, every=1000, alarm=True), range(10, 60, 5)
    for step in range(1, 60):
        model.weight.grad = scales * torch.randn(shape, generator=g)
        if step in spiked:
            model.weight.grad[3, 5] = size * scales[3, 5]
        monitor.step()
    assert [(spike.step, spike.place) for spike in monitor.spikes()] == [(step, (3, 5)) for step in spiked]


def test_the_alarm_looks_closely_at_few_matrices():
    """A closer look costs much more than the screen; entries of heavy tails in rows of changing scales call for few."""
    model, g = nn.Linear(80, 60, bias=False), torch.Generator().manual_seed(0)
    monitor, looks = Monitor(model, every=1000, alarm=True), 0
    for _ in range(200):
        rows = torch.exp(0.3 * torch.randn(60, 1, generator=g))
        model.weight.grad = rows * torch.randn(60, 80, generator=g) * torch.randn(60, 80, generator=g)
        looks += len(monitor._suspects())
        monitor.step()
    assert looks < 20
    assert monitor.spikes() == []


def test_rows_without_a_gradient_do_not_disturb_the_alarm():
    model, g = nn.Linear(80, 60, bias=False), torch.Generator().manual_seed(0)
    monitor = Monitor(model, every=1000, alarm=True)
    for step in range(1, 41):
        used = torch.rand(60, 1, generator=g) < 0.3
        model.weight.grad = used * torch.randn(60, 80, generator=g)
        if step == 30:
            model.weight.grad[7, 9] = 1e3
        monitor.step()
    assert [(spike.step, spike.place) for spike in monitor.spikes()] == [(30, (7, 9))]


def test_places_are_those_of_the_parameter():
    """A fused weight that is stored as (in, out), a convolution and an expert."""
    conv1d = pytest.importorskip("transformers.pytorch_utils").Conv1D
    model = nn.Module()
    model.c_attn, model.conv = conv1d(3 * 16, 16), nn.Conv2d(4, 30, 3, bias=False)
    model.experts = nn.Parameter(torch.zeros(3, 20, 25))
    spikes = {"c_attn.weight": (5, 40), "conv.weight": (7, 2, 1, 0), "experts": (2, 11, 13)}
    monitor, g = Monitor(model, every=4), torch.Generator().manual_seed(0)
    for step in range(4):
        for name, p in model.named_parameters():
            p.grad = torch.randn(p.shape, generator=g)
            if step == 3 and name in spikes:
                p.grad[spikes[name]] = 1e3
        monitor.step()
    found = {spike.name: spike for spike in monitor.spikes()}
    assert {name: spike.place for name, spike in found.items()} == {
        "c_attn.weight.v": (5, 40),
        "conv.weight": (7, 2, 1, 0),
        "experts.2": (2, 11, 13),
    }
    assert "row 8 column 5 (index 5, 40 of the parameter)" in str(found["c_attn.weight.v"])


def test_a_monitor_goes_on_from_its_state():
    model = nn.Linear(40, 30, bias=False)
    whole, first, second = (Monitor(model, every=10, alarm=True) for _ in range(3))
    g = torch.Generator().manual_seed(0)
    for step in range(1, 61):
        model.weight.grad = 3 + torch.randn(30, 40, generator=g)
        whole.step()
        (first if step <= 30 else second).step()
        if step == 30:
            second.load_state_dict(first.state_dict())
    assert second.steps == 60
    assert [str(reading) for reading in first.readings + second.readings] == list(map(str, whole.readings))


@pytest.mark.parametrize("every", [0, -1, 2.5, True])
def test_bad_every(every):
    with pytest.raises(ValueError, match="every must be a whole number of steps >= 1"):
        Monitor(nn.Linear(3, 3), every=every)


def readings_of(noise, steps=40, seed=0):
    """The readings of a monitor of one matrix whose gradient in each step is noise(step, Gaussian)."""
    model, g = nn.Linear(40, 30, bias=False), torch.Generator().manual_seed(seed)
    monitor = Monitor(model, every=10)
    for step in range(1, steps + 1):
        model.weight.grad = noise(step, torch.randn(30, 40, generator=g))
        monitor.step()
    return monitor


def test_a_reading_says_what_the_noise_is_with_both_numbers():
    """Anomalous entries come before rows and columns, as in the probe."""
    rows = torch.linspace(-1.5, 1.5, 30).exp()[:, None]
    spike = torch.zeros(30, 40)
    spike[9, 7] = 60.0
    plain, uneven = readings_of(lambda step, z: z), readings_of(lambda step, z: rows * z)
    spiked = readings_of(lambda step, z: rows * (z + spike if step == 40 else z))
    assert [each.structure for each in plain.readings] == ["neither"] * 4
    assert [each.structure for each in uneven.readings] == ["rows and columns"] * 4
    assert [each.structure for each in spiked.readings] == ["rows and columns"] * 3 + ["anomalous entries"]
    last = spiked.readings[-1]
    words = rf"row 9 column 7: anomalous entries; standardised {last.standardized.share:.0%} of sigma_1, "
    assert words + f"{last.standardized.size:.3g} scales; raw {last.share:.0%}, {last.size:.3g} scales" in str(last)
    assert ": rows and columns; standardised " in str(uneven.readings[-1])
    assert ": neither; standardised " in str(plain.readings[-1])


@pytest.mark.parametrize("share", [0.0, 0.05])
def test_many_large_entries_are_anomalous_though_none_dominates(share):
    """One entry in 20 is 12 times larger: none carries sigma_1 alone, and a clip would gain much, as the probe says."""
    model, g = nn.Linear(150, 200, bias=False), torch.Generator().manual_seed(0)
    monitor = Monitor(model, every=10)
    for _ in range(20):
        large = torch.rand(200, 150, generator=g) < share
        model.weight.grad = torch.where(large, 12.0, 1.0) * torch.randn(200, 150, generator=g)
        monitor.step()
    last = monitor.readings[-1]
    assert not last.spiked
    assert str(last.structure) == ("anomalous entries" if share else "neither")
    assert last.gain > 3 if share else last.gain < 1.05
    assert readings_of(lambda step, z: z).readings[-1].gain is None  # too few entries to tell


def lognormal(shape, sd, g):
    return torch.exp(sd * torch.randn(shape[0], 1, generator=g)) * torch.exp(sd * torch.randn(1, shape[1], generator=g))


CHANGING = {
    "scales": lambda z, g: z * lognormal(z.shape, 1.0, g),
    "some scales": lambda z, g: (
        z * lognormal(z.shape, 1.0, torch.Generator().manual_seed(5)) * lognormal(z.shape, 0.7, g)
    ),
    "rows": lambda z, g: z * (torch.rand(len(z), 1, generator=g) < 0.2),
}


@pytest.mark.parametrize("kind", CHANGING)
@pytest.mark.parametrize("alarm", [False, True])
def test_scales_that_change_from_step_to_step_are_no_anomaly(kind, alarm):
    """The running mean has the scales of the steps before, so that no row and column explains the difference."""
    model, g = nn.Linear(96, 128, bias=False), torch.Generator().manual_seed(0)
    monitor = Monitor(model, every=10, alarm=alarm)
    for step in range(1, 151):
        model.weight.grad = CHANGING[kind](torch.randn(128, 96, generator=g), g)
        if step == 140:
            place = divmod(int(model.weight.grad.abs().argmax()), 96)
            model.weight.grad[place] *= 20
        monitor.step()
    assert [(each.step, each.place) for each in monitor.spikes()] == [(140, place)]
    assert {str(each.structure) for each in monitor.readings if each.step != 140} == {"rows and columns"}
    assert all(each.raw_gain > 2 > 1.2 * each.gain for each in monitor.readings if each.step != 140)


@pytest.mark.parametrize("signal", [0.3, 1.0, 3.0])
def test_a_spike_below_the_signal_is_seen(signal):
    """It stands out of the noise of its row alone, since the mean has the signal."""
    model, g = nn.Linear(96, 128, bias=False), torch.Generator().manual_seed(1)
    scale = lognormal((128, 96), 1.0, g)
    mean = signal * torch.randn(128, 3, generator=g) @ torch.randn(3, 96, generator=g)
    monitor = Monitor(model, every=10)
    quiet = int(scale[:, 0].argmin())
    for step in range(1, 61):
        model.weight.grad = mean + scale * torch.randn(128, 96, generator=g)
        if step == 50:
            model.weight.grad[quiet, 7] += 40 * scale[quiet, 7]
        monitor.step()
    assert [(each.step, each.place) for each in monitor.spikes()] == [(50, (quiet, 7))]


@pytest.mark.parametrize("active", [0.5, 0.95])
def test_a_spike_that_is_alone_in_its_row_is_seen(active):
    """It is the scale of its row in this step's gradient, and stands out of the steps before."""
    model, g = nn.Linear(96, 128, bias=False), torch.Generator().manual_seed(2)
    monitor = Monitor(model, every=10)
    for step in range(1, 61):
        model.weight.grad = torch.randn(128, 96, generator=g) * (torch.rand(128, 1, generator=g) < active)
        if step == 50:
            model.weight.grad[9] = 0.0
            model.weight.grad[9, 7] = 1e6
        monitor.step()
    assert (50, (9, 7)) in [(each.step, each.place) for each in monitor.spikes()]


def test_gaussian_entries_of_a_narrow_matrix_are_no_spikes():
    model, g = nn.Linear(8, 8, bias=False), torch.Generator().manual_seed(0)
    monitor = Monitor(model, every=2, alarm=True)
    for step in range(1, 201):
        model.weight.grad = torch.randn(8, 8, generator=g)
        model.weight.grad[3, 5] += 1e4 if step == 150 else 0.0
        monitor.step()
    assert [(each.step, each.place) for each in monitor.spikes()] == [(150, (3, 5))]
    assert sum(str(each.structure) == "anomalous entries" for each in monitor.readings) == 1


def test_metrics_have_both_numbers():
    rows = torch.linspace(-1.5, 1.5, 30).exp()[:, None]
    monitor = readings_of(lambda step, z: rows * z)
    (reading,) = monitor.readings[-1:]
    assert monitor.metrics() == {
        "noise/spiked": 0,
        "noise/raw_spiked": 0,
        "noise/rows_and_columns": 1,
        "noise/largest_share": reading.share,
        "noise/largest_size": reading.size,
        "noise/standardized_largest_share": reading.standardized.share,
        "noise/standardized_largest_size": reading.standardized.size,
    }
    assert reading.standardized.size < reading.size / 1.5
    assert monitor.metrics(since=0)["noise/rows_and_columns"] == 1
