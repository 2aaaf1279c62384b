"""The probe against the backward passes it makes, and the monitor against the training it watches."""

import time
from collections.abc import Iterator

import torch

from ...diagnostics import Monitor, probe
from ..lm import GPT, Config
from .timing import Result, milliseconds

LENGTH, SAMPLES, STEPS = 1024, 64, 40
SIZES = Config(
    vocabulary=4096, separator=4095, layers=8, width=256, heads=2, head_size=128, value_tables=2,
    without_attention=(5,), long_layers=(0, 7), window=LENGTH,
)  # fmt: skip


def run() -> Iterator[Result]:
    model, batches = trained()
    yield whole_probe(model, batches)
    yield watched_training(model, batches)


def trained() -> tuple[GPT, list[torch.Tensor]]:
    """10M parameters, a few steps from the start, so that every matrix has a gradient."""
    torch.manual_seed(0)
    model = GPT(SIZES)
    batches = [torch.randint(4095, (LENGTH + 1,)) for _ in range(SAMPLES)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for batch in batches[:5]:
        one_pass(model, batch)
        optimizer.step()
    return model, batches


def loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch[:-1], batch[1:])


def one_pass(model: torch.nn.Module, batch: torch.Tensor) -> None:
    model.zero_grad()
    loss(model, batch).backward()  # type: ignore[no-untyped-call]


def whole_probe(model: GPT, batches: list[torch.Tensor]) -> Result:
    """The passes are timed inside the run itself: the machine is shared, and may be busier a minute later."""
    passes: list[float] = []
    backward = torch.Tensor.backward

    def timed_loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        passes.append(-time.perf_counter())
        return loss(model, batch)

    def timed_backward(self: torch.Tensor) -> None:
        backward(self)  # type: ignore[no-untyped-call]
        passes[-1] += time.perf_counter()

    torch.Tensor.backward = timed_backward  # type: ignore[method-assign, assignment]
    try:
        start = time.perf_counter()
        report = probe(model, timed_loss, batches)
        whole = time.perf_counter() - start
    finally:
        torch.Tensor.backward = backward  # type: ignore[method-assign]
    assert len(report.matrices) == 44
    assert all(matrix.samples == 31 for matrix in report.matrices)
    name = "probe / its backward passes, 10M parameters, 64 samples of 1024 tokens"
    detail = f"{whole:.0f} s, of which {sum(passes):.0f} s for {len(passes)} passes"
    return Result(name, whole / sum(passes), 1.3, False, detail)


def watched_training(model: GPT, batches: list[torch.Tensor]) -> Result:
    """The monitor's own time, all of its renewals and one reading, over that of 100 steps of training."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    monitor, own, steps = Monitor(model, every=100), 0.0, []
    for i in range(100):
        if i < STEPS:  # the others cost the same
            start = time.perf_counter()
            one_pass(model, batches[i])
            optimizer.step()
            steps.append(time.perf_counter() - start)
        start = time.perf_counter()
        monitor.step()
        own += time.perf_counter() - start
    assert len(monitor.readings) == 44
    share = own / (100 * sum(steps) / len(steps))
    detail = f"{milliseconds(own)} in 100 steps of {milliseconds(sum(steps) / len(steps))}"
    return Result(
        "Monitor(every=100), share of training, 10M parameters, 1024 tokens a step", share, 0.02, False, detail
    )
