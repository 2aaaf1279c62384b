"""Units on processes of this machine, joblib's own (loky): a death or a signal costs only what was under way."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import Any

from .units import Outcome, Unit, fail

Work = Callable[[Unit], Outcome]


def outcomes(units: list[Unit], work: Work, count: int) -> Iterator[Outcome]:
    """The outcomes of `work` on up to `count` units at a time, as they come.

    Where a process dies, every unit that was under way is tried again alone, and one that kills its process again has
    failed. A signal is answered when the processes have been stopped, not in the middle of something.
    """
    with _signals_later() as asked:
        waiting, suspects = list(units), list[Unit]()
        while (waiting or suspects) and not asked:
            alone = bool(suspects)
            batch, limit = (suspects, 1) if alone else (waiting, count)
            broken: list[Unit] = []
            for unit, outcome in _run(batch, work, limit, asked):
                if outcome is not None:
                    yield outcome
                elif alone:
                    yield fail(unit, "its process died: a crash, or no memory left")
                else:
                    broken.append(unit)
            suspects = suspects if alone else broken


def _run(queue: list[Unit], work: Work, count: int, asked: list[int]) -> Iterator[tuple[Unit, Outcome | None]]:
    """Take units from the queue until it is empty, a process dies or a signal comes; None for what a death cut off."""
    from joblib.externals.loky import ProcessPoolExecutor
    from joblib.externals.loky.process_executor import BrokenProcessPool

    executor = ProcessPoolExecutor(max_workers=count, timeout=300)
    running: dict[Future[Outcome], Unit] = {}
    dead = False
    try:
        while (running or (queue and not dead)) and not asked:
            while queue and len(running) < count and not dead:
                try:
                    with _blocked(signal.SIGINT):  # a process inherits this: Ctrl-C is for us to answer
                        future = executor.submit(_follow, work, queue[0], os.getpid())
                    running[future] = queue.pop(0)
                except BrokenProcessPool:
                    dead = True
            for future in wait(running, timeout=0.1, return_when=FIRST_COMPLETED).done:
                unit, cut_off = running.pop(future), isinstance(future.exception(), BrokenProcessPool)
                dead |= cut_off
                if not asked:
                    yield unit, None if cut_off else future.result()
    finally:
        executor.shutdown(kill_workers=True)


def _follow(work: Work, unit: Unit, parent: int) -> Outcome:
    """In the process: do the work, and end with the parent, even where that is killed."""
    if not any(thread.name == "follow" for thread in threading.enumerate()):
        threading.Thread(target=_end_with, args=(parent,), name="follow", daemon=True).start()
    return work(unit)


def _end_with(parent: int) -> Any:
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)


@contextmanager
def _signals_later() -> Iterator[list[int]]:
    """A list that a first Ctrl-C or SIGTERM is put into; it is raised again on leaving."""
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    numbers = signal.SIGINT, signal.SIGTERM
    before = {number: signal.signal(number, lambda number, _: asked.append(number)) for number in numbers}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if asked:
            signal.raise_signal(asked[0])


@contextmanager
def _blocked(number: signal.Signals) -> Iterator[None]:
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # the first process would start it, which unblocks the signals again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
