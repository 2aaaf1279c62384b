"""What changes over a run: the learning rate, Muon's momentum in the speed-run, and when to evaluate."""

SCHEDULES = ("linear", "wsd", "constant")


def lr_factor(
    schedule: str, step: int, steps: int, *, warmup: int = 0, decay: float = 0.4, floor: float = 0.0
) -> float:
    """The learning rate of step 0, 1, ..., steps - 1, as a multiple of the largest.

    linear      falls to `floor` over the run, after the warm-up
    wsd         warm-up, stable, decay: falls over the last `decay` of the run only
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


def momentum(step: int, *, start: float = 0.85, end: float = 0.95, over: int = 300) -> float:
    """The speed-run's momentum of Muon: rises over the first steps.

    >>> [round(momentum(step), 3) for step in (0, 150, 300, 1000)]
    [0.85, 0.9, 0.95, 0.95]
    """
    share = min(step / over, 1)
    return (1 - share) * start + share * end


def evaluation_steps(steps: int, every: int) -> list[int]:
    """After how many steps to evaluate: before the first, every `every`, four times as often in the last fifth.

    Where a curve crosses a level is read off it; towards the end curves are flat, and a coarse grid blurs the place.

    >>> evaluation_steps(100, 20)
    [0, 20, 40, 60, 80, 85, 90, 95, 100]
    """
    dense, last = max(every // 4, 1), steps - steps // 5
    return sorted({*range(0, last + 1, every), *range(last, steps + 1, dense), steps})
