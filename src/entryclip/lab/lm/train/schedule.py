"""Quantities that change over a run: the learning rate, the speed-run's momentum, and the steps of evaluations."""

SCHEDULES = ("linear", "wsd", "constant")


def lr_factor(
    schedule: str, step: int, steps: int, *, warmup: int = 0, decay: float = 0.4, floor: float = 0.0
) -> float:
    """Compute the learning rate of step 0, 1, ..., steps - 1 as a multiple of the largest.

    linear      falls to `floor` over the run, after the warm-up
    wsd         warm-up, stable, decay: falls over the last share `decay` of the run only
    constant    stays

    >>> [round(lr_factor("linear", step, 4), 2) for step in range(4)]
    [1.0, 0.75, 0.5, 0.25]
    >>> [round(lr_factor("wsd", step, 10, warmup=2, decay=0.3), 2) for step in range(10)]
    [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.67, 0.33]
    """
    if step < warmup:
        return (step + 1) / warmup
    if schedule == "constant":
        return 1.0
    start = warmup if schedule == "linear" else max(warmup, round(steps * (1 - decay)))
    left = 1 - max(step - start, 0) / max(steps - start, 1)
    return floor + (1 - floor) * left


def warm_momentum(step: int, *, start: float = 0.85, end: float = 0.95, over: int = 300) -> float:
    """Compute Muon's momentum as the speed-run had it: it rises linearly over the first steps.

    >>> [round(warm_momentum(step), 3) for step in (0, 150, 300, 1000)]
    [0.85, 0.9, 0.95, 0.95]
    """
    share = min(step / over, 1)
    return (1 - share) * start + share * end


def evaluation_steps(steps: int, every: int) -> list[int]:
    """List the steps after which to evaluate: 0, every `every`, and four times as often in the last fifth of the run.

    With `every` 0 it is the last step alone.

    The step at which a loss curve reaches a level is read off these points. Towards the end curves are flat, so a
    coarse grid would blur that step.

    >>> evaluation_steps(100, 20)
    [0, 20, 40, 60, 80, 85, 90, 95, 100]
    >>> evaluation_steps(100, 0)
    [100]
    """
    if not every:
        return [steps]
    dense, last = max(every // 4, 1), steps - steps // 5
    return sorted({*range(0, last + 1, every), *range(last, steps + 1, dense), steps})
