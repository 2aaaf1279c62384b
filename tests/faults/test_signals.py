"""Ctrl-C and SIGTERM, once or ten times, at any moment: one line, the right code, clean-up that is not interrupted."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import entryclip
from entryclip.cli.stopping import Stopped, Stops

# Every Python process reads this first: it sends the signals to itself when a module is imported, or at the very end.
SITE = """
import atexit, os, sys

def send():
    for _ in range({times}):
        os.kill(os.getpid(), {number})

class Trap:
    def find_spec(self, name, path=None, target=None):
        if name == "{moment}":
            sys.meta_path.remove(self)
            try:
                send()
            except:  # as some packages do while they are imported
                pass

sys.meta_path.insert(0, Trap())
if "{moment}" == "exit":
    atexit.register(send)
"""


def run(folder, moment, number, times, *arguments):
    (folder / "sitecustomize.py").write_text(SITE.format(moment=moment, number=int(number), times=times))
    path = os.pathsep.join(map(str, (folder, Path(entryclip.__file__).parents[1])))
    command = [sys.executable, "-m", "entryclip", *arguments]
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=200)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("moment", "times"), [("entryclip.cli.app", 1), ("tyro", 10), ("numpy", 2)])
def test_while_a_command_starts(tmp_path, moment, times, number):
    done = run(tmp_path, moment, number, times, "reproduce", "all", "--out", str(tmp_path / "out"))
    assert done.returncode == 128 + number
    assert done.stderr.startswith(
        "entryclip: stopped; what is finished is kept, and the same command goes on: entryclip"
    )
    assert done.stderr.count("\n") == 1


def test_while_a_command_ends(tmp_path):
    done = run(tmp_path, "exit", signal.SIGINT, 10, "nonsense")
    assert done.returncode == 2
    assert done.stderr.startswith("entryclip: Unrecognized options: nonsense")
    assert done.stderr.count("\n") == 1


def kill():
    os.kill(os.getpid(), signal.SIGINT)


def work_that_cleans_up(cleaned):
    """Be stopped by a signal, and get nine more while cleaning up, which has errors of its own."""
    try:
        kill()
    finally:
        for i in range(9):
            try:
                kill()
                raise KeyError
            except KeyError:
                kill()
            cleaned.append(i)


def test_ten_signals_do_not_interrupt_the_clean_up():
    cleaned = []
    before = signal.getsignal(signal.SIGINT)
    with Stops("", until_exit=False) as stops:
        stops.started()
        with pytest.raises(Stopped) as stopped:
            work_that_cleans_up(cleaned)
        stops.ended()
        kill()
    assert stopped.value.number == signal.SIGINT
    assert cleaned == list(range(9))
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_whose_exception_is_lost_can_be_sent_again():
    class Finalized:
        def __del__(self):
            kill()  # Python lets no exception out of here

    with Stops("", until_exit=False) as stops:
        stops.started()
        Finalized()
        with pytest.raises(Stopped):
            kill()
        stops.ended()
