"""The command `entryclip`, one file per command; `app` has the list of them. Only here are paths read."""

import importlib.util
import shlex
import sys
from collections.abc import Sequence

from .stopping import Stopped, orderly
from .terminal import fail


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point; returns the exit code. Bad input is one line on standard error and exit code 2.

    1: a unit failed. 128 + a signal's number: stopped by it.
    """
    if importlib.util.find_spec("tyro") is None:
        return fail("the commands need more packages: pip install 'entryclip[experiments]'")
    from .app import run

    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with orderly():
            return run(arguments)
    except (ValueError, OSError, ImportError) as error:
        return fail(str(error))
    except Stopped as stop:
        again = shlex.join(["entryclip", *arguments])
        return fail(f"stopped; what is finished is kept, and the same command goes on: {again}", 128 + stop.number)
