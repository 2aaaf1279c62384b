"""Units on worker processes of this machine (joblib's loky): a crash or a signal loses only what was under way."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from multiprocessing import resource_tracker

from .units import Outcome, Unit, fail

Work = Callable[[Unit], Outcome]

_GROWTH = 1 << 32  # bytes that a worker may grow by after its first unit


def outcomes(queue: list[Unit], work: Work, count: int) -> Iterator[Outcome]:
    """Work off the queue, up to `count` units at a time, and yield the outcomes of `work` as they come.

    Who takes an outcome may append units to the queue: a free worker begins with them at once. When a worker dies,
    every unit that was under way is tried again alone; a unit that kills its worker again has failed. A signal is
    raised once the workers have been stopped, never in the middle of a step.
    """
    with _signals_later() as received:
        suspects = list[Unit]()
        while (queue or suspects) and not received:
            alone = bool(suspects)
            batch, limit = (suspects, 1) if alone else (queue, count)
            broken: list[Unit] = []
            for unit, outcome in _run(batch, work, limit, received):
                if outcome is not None:
                    yield outcome
                elif alone:
                    yield fail(unit, "its process died: a crash, or no memory left")
                else:
                    broken.append(unit)
            suspects = suspects if alone else broken


def _run(queue: list[Unit], work: Work, count: int, received: list[int]) -> Iterator[tuple[Unit, Outcome | None]]:
    """Work off the queue until it is empty, a worker dies or a signal comes; None marks a unit whose worker died."""
    from joblib.externals.loky import ProcessPoolExecutor
    from joblib.externals.loky.process_executor import BrokenProcessPool

    executor = ProcessPoolExecutor(max_workers=count, timeout=300)
    running: dict[Future[Outcome], Unit] = {}
    dead = False
    try:
        while (running or (queue and not dead)) and not received:
            while queue and len(running) < count and not dead:
                try:
                    with _blocked(signal.SIGINT):  # inherited by the workers: only this process answers Ctrl-C
                        future = executor.submit(_follow, work, queue[0], os.getpid())
                    running[future] = queue.pop(0)
                except BrokenProcessPool:
                    dead = True
            for future in wait(running, timeout=0.1, return_when=FIRST_COMPLETED).done:
                unit, cut_off = running.pop(future), isinstance(future.exception(), BrokenProcessPool)
                dead |= cut_off
                if not received:
                    yield unit, None if cut_off else future.result()
    finally:
        executor.shutdown(kill_workers=True)


def _follow(work: Work, unit: Unit, parent: int) -> Outcome:
    """In a worker: do the work, and see to it that the worker ends when its parent does, even by kill -9.

    loky takes one that has grown by 300 MB for leaking, warns, and starts another. A unit with a larger model than the
    first grows so much, freed memory is kept on purpose, and a new worker imports torch for seconds.
    """
    from joblib.externals.loky import process_executor

    process_executor._MAX_MEMORY_LEAK_SIZE = _GROWTH
    if not any(thread.name == "follow" for thread in threading.enumerate()):
        threading.Thread(target=_end_with, args=(parent,), name="follow", daemon=True).start()
    return work(unit)


def _end_with(parent: int) -> None:
    """Watch the parent process, and exit when this process has another."""
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)


@contextmanager
def _signals_later() -> Iterator[list[int]]:
    """Collect Ctrl-C and SIGTERM in the list that is yielded, and raise the first of them again on leaving."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    numbers = signal.SIGINT, signal.SIGTERM
    before = {number: signal.signal(number, lambda number, _: received.append(number)) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if received:
            signal.raise_signal(received[0])


@contextmanager
def _blocked(number: signal.Signals) -> Iterator[None]:
    """Block a signal in this thread, and in the processes it starts; Windows has no such thing."""
    if sys.platform == "win32":
        yield
        return
    resource_tracker.ensure_running()  # started by the first worker, it would unblock the signals again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
