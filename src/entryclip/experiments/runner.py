"""Run units in parallel processes, here or on a cluster, so that nothing finished is ever lost or done twice."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from .units import Outcome, Unit, attempt, fail, read, stale

BACKENDS = ("loky", "dask", "ray")
STALE = ("refuse", "recompute", "keep")
_TREATED = {"recompute": "computed again", "keep": "kept"}


@dataclass
class Plan:
    """What is there and what is to do."""

    finished: list[Unit] = field(default_factory=list)
    to_do: list[Unit] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # damaged, foreign and outdated files


def plan(units: Iterable[Unit], *, on_stale: str = "refuse") -> Plan:
    """Look at the disk. A file that is damaged or foreign is never used; one made by other code as `on_stale` says."""
    found, outdated = Plan(), dict[str, int]()
    for unit in units:
        try:
            content = read(unit)
        except ValueError as error:
            found.notes.append(f"{error}; computed again")
            content = None
        reasons = "; ".join(stale(unit, content)) if content else ""
        if reasons:
            outdated[reasons] = outdated.get(reasons, 0) + 1
        usable = content is not None and (not reasons or on_stale == "keep")
        (found.finished if usable else found.to_do).append(unit)
    for reasons, count in outdated.items():
        if on_stale == "refuse":
            raise ValueError(refusal(f"{count} finished units were", [reasons]))
        found.notes.append(f"{count} finished units, made by {reasons}, are {_TREATED[on_stale]}")
    return found


def refusal(what: str, reasons: list[str]) -> str:
    """Why results of other code or versions are not mixed with today's, and the way out."""
    return f"{what} made by {'; '.join(reasons)}: use --stale recompute or keep, or another folder with --out"


def execute(
    units: list[Unit],
    *,
    jobs: int | None = None,
    backend: str = "loky",
    cluster: str | None = None,
    progress: Callable[[Outcome], object] = lambda _: None,
) -> list[Outcome]:
    """Do the units on `jobs` processes (one per core), each on one thread; units of another process are waited for.

    The results are files in the units' folders, which every process of a cluster must share.
    """
    outcomes: list[Outcome] = []
    for wait in (False, True):
        pending = [outcome.unit for outcome in outcomes if outcome.state == "busy"] if wait else units
        outcomes = [outcome for outcome in outcomes if outcome.state != "busy"]
        for outcome in _parallel(pending, wait, jobs, backend, cluster):
            if outcome.state != "busy":
                progress(outcome)
            outcomes.append(outcome)
    return outcomes


def _parallel(units: list[Unit], wait: bool, jobs: int | None, backend: str, cluster: str | None) -> Iterator[Outcome]:
    """The outcomes as they come; on leaving early the workers are stopped."""
    if backend != "loky":
        with _cluster(backend, cluster):
            yield from _pool(units, wait, -1) if units else ()
        return
    count, remaining = min(jobs or cores(), len(units)), list(units)
    if len(units) == 1:
        yield _on_one_thread(units[0], wait)
    elif count == 1:
        yield from _one_by_one(units, wait)
    elif units:
        yield from _local(remaining, wait, count)


def _local(remaining: list[Unit], wait: bool, count: int) -> Iterator[Outcome]:
    """On processes of this machine. Where one of them dies, all those under way are tried again one by one."""
    from joblib import parallel_config
    from joblib.externals.loky.process_executor import BrokenProcessPool

    while remaining:
        try:
            with parallel_config(backend="loky", inner_max_num_threads=1):
                for outcome in _pool(remaining, wait, count):
                    yield outcome
                    remaining.remove(outcome.unit)
        except BrokenProcessPool:  # units start in order, so it was one of the first
            yield from _one_by_one([remaining.pop(0) for _ in range(min(count, len(remaining)))], wait)


def _pool(units: list[Unit], wait: bool, count: int) -> Iterator[Outcome]:
    from joblib import Parallel, delayed

    parallel = Parallel(n_jobs=count, return_as="generator_unordered", batch_size=1, pre_dispatch="n_jobs")
    results = parallel(delayed(_worker)(unit, wait, os.getpid()) for unit in list(units))
    try:
        yield from results
    finally:
        results.close()


def _one_by_one(units: list[Unit], wait: bool) -> Iterator[Outcome]:
    """In a process beside this one, which may die without taking the others along."""
    from joblib.externals.loky import get_reusable_executor
    from joblib.externals.loky.process_executor import BrokenProcessPool

    executor = None
    try:
        for unit in units:
            executor = get_reusable_executor(max_workers=1)
            try:
                yield executor.submit(_worker, unit, wait, os.getpid()).result()
            except BrokenProcessPool:
                yield fail(unit, "its process died: a crash, or no memory left")
    finally:
        if executor is not None:
            executor.shutdown(kill_workers=True)


@contextmanager
def _cluster(name: str, cluster: str | None) -> Iterator[None]:
    """joblib's own backend of that name; `cluster` is the address of its scheduler, or one is started here."""
    from joblib import parallel_config

    if name == "dask":
        from distributed import Client

        with Client(cluster) as client, parallel_config(backend="dask"):  # type: ignore[no-untyped-call]
            client.run(_nothing)  # joblib takes the workers that are there: wait for them
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
    """Those this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _nothing() -> None:
    pass


def _on_one_thread(unit: Unit, wait: bool) -> Outcome:
    """On one thread, as everywhere, so that the numbers are the same to the bit."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return attempt(unit, wait=wait)
    finally:
        torch.set_num_threads(threads)


def _worker(unit: Unit, wait: bool, parent: int) -> Outcome:
    if os.getppid() == parent:  # ours alone: a cluster's workers have their own masters
        _follow(parent)
    return _on_one_thread(unit, wait)


def _follow(parent: int) -> None:
    """Leave Ctrl-C to the parent, and end with it, even where it is killed."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not any(thread.name == "follow" for thread in threading.enumerate()):
        threading.Thread(target=_end_with, args=(parent,), name="follow", daemon=True).start()


def _end_with(parent: int) -> Any:
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)
