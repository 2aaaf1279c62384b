"""Run units in parallel processes, here or on a cluster, so that nothing finished is ever lost or done twice."""

import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial

from . import processes
from .allocator import keep_freed_memory
from .units import Outcome, State, Unit, attempt, outdated, read


class Backend(StrEnum):
    """Where units run: processes of this machine, or a cluster."""

    LOKY = "loky"
    DASK = "dask"
    RAY = "ray"


class OnStale(StrEnum):
    """What to do with finished units that other code, versions or data made."""

    REFUSE = "refuse"
    RECOMPUTE = "recompute"
    KEEP = "keep"


_TREATED = {OnStale.RECOMPUTE: "computed again", OnStale.KEEP: "kept"}


@dataclass
class Plan:
    """Which units are finished and which are to do, by what is on disk."""

    finished: list[Unit] = field(default_factory=list)
    to_do: list[Unit] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # damaged, foreign and outdated files


def plan(units: Iterable[Unit], *, on_stale: OnStale = OnStale.REFUSE) -> Plan:
    """Look for the units' files. One that is damaged or foreign is never used, one of other code only to `KEEP`."""
    found, stale = Plan(), dict[str, int]()
    for unit in units:
        try:
            content = read(unit)
        except ValueError as error:
            found.notes.append(f"{error}; computed again")
            content = None
        reasons = "; ".join(outdated(unit.study, unit.config, content.made_by)) if content else ""
        if reasons:
            stale[reasons] = stale.get(reasons, 0) + 1
        usable = content is not None and (not reasons or on_stale is OnStale.KEEP)
        (found.finished if usable else found.to_do).append(unit)
    for reasons, count in stale.items():
        if on_stale is OnStale.REFUSE:
            raise ValueError(refusal(f"{count} finished units were", [reasons]))
        found.notes.append(f"{count} finished units, made by {reasons}, are {_TREATED[on_stale]}")
    return found


def refusal(what: str, reasons: list[str]) -> str:
    """The message that says why results are stale, and what the user can do."""
    return f"{what} made by {'; '.join(reasons)}: use --stale recompute or keep, or another folder with --out"


def execute(
    units: list[Unit],
    *,
    jobs: int | None = None,
    backend: Backend = Backend.LOKY,
    cluster: str | None = None,
    progress: Callable[[Outcome], object] = lambda _: None,
    following: Callable[[Outcome], list[Unit]] | None = None,
) -> list[Outcome]:
    """Do the units on `jobs` processes (None: one per core), and wait for those that another command is doing.

    `following` is told every unit that ends, and names further units to do: processes of this machine begin with them
    as soon as one is free, a cluster when it has done all that it was given. The results are files in the units'
    folders, which every process of a cluster must share.
    """
    queue, busy, known, outcomes = list(units), list[Unit](), list(units), list[Outcome]()
    processes_at_most = jobs or cores()
    while queue or busy:
        wait = not queue
        if wait:
            queue, busy = busy, []
        count = processes_at_most if following else min(processes_at_most, len(queue))
        with closing(_parallel(queue, wait, count, backend, cluster)) as ended:
            for outcome in ended:
                if outcome.state is State.BUSY:
                    busy.append(outcome.unit)
                    continue
                progress(outcome)
                outcomes.append(outcome)
                more = following(outcome) if following else []
                queue.extend(more)
                known.extend(more)
    place = {unit.path: i for i, unit in enumerate(known)}
    return sorted(outcomes, key=lambda outcome: place[outcome.unit.path])  # not in the order in which they ended


def _parallel(
    queue: list[Unit], wait: bool, count: int, backend: Backend, cluster: str | None
) -> Generator[Outcome, None, None]:
    """Take units off the queue and yield their outcomes as they come.

    Processes of this machine go on while units are appended to the queue. A cluster, and this process for a single
    unit, do only what is there at the start.
    """
    if backend is not Backend.LOKY:
        from joblib import Parallel, delayed

        batch = tuple(queue)
        queue.clear()
        with _cluster(backend, cluster):
            returns = "list" if backend is Backend.RAY else "generator_unordered"  # Ray's backend has no generator
            parallel = Parallel(n_jobs=-1, return_as=returns, batch_size=1, pre_dispatch="n_jobs")
            yield from parallel(delayed(_on_one_thread)(unit, wait) for unit in batch)
    elif len(queue) == 1:
        yield _on_one_thread(queue.pop(), wait)
    else:
        yield from processes.outcomes(queue, partial(_on_one_thread, wait=wait), count)


@contextmanager
def _cluster(backend: Backend, cluster: str | None) -> Iterator[None]:
    """Make joblib use a cluster; `cluster` is the address of its scheduler, None starts one on this machine."""
    from joblib import parallel_config

    if backend is Backend.DASK:
        from distributed import Client

        with Client(cluster) as client, parallel_config(backend="dask"):  # type: ignore[no-untyped-call]
            client.run(_nothing)  # joblib counts the workers once: wait until one has answered
            yield
    else:
        import ray
        from ray.util.joblib import register_ray

        ray.init(address=cluster, log_to_driver=False, ignore_reinit_error=True)
        register_ray()
        try:
            with parallel_config(backend="ray"):
                yield
        finally:
            ray.shutdown()


def cores() -> int:
    """The number of cores that this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _nothing() -> None:
    pass


def _on_one_thread(unit: Unit, wait: bool) -> Outcome:
    """Do a unit on one thread of torch, so that its numbers are the same to the bit wherever it runs."""
    import torch

    keep_freed_memory()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return attempt(unit, wait=wait)
    finally:
        torch.set_num_threads(threads)
