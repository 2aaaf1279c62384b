"""The `entryclip` command. Each subcommand has a file of its own; `app` lists them.

Only this package reads arguments, paths and the environment.
"""

import shlex
import sys
from collections.abc import Sequence

from .. import __version__
from ..lab.engine.printable import printable
from .extras import missing, overview, with_remedy
from .stopping import Stopped, Stops
from .terminal import fail


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code.

    0 is success, 1 a unit of work that failed, 2 bad input or a missing package (one line on standard error), and
    128 + n a stop by signal n. Without arguments it runs the command line of this process, which then has to end.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] in (["--help"], ["-h"], ["--version"]):
        sys.stdout.write(f"entryclip {__version__}\n" if given[0] == "--version" else f"{overview()}\n")
        return 0
    again = shlex.join(["entryclip", *given])
    message = f"stopped; what is finished is kept, and the same command goes on: {again}"
    with Stops(f"entryclip: {printable(message)}", until_exit=arguments is None) as stops:
        try:
            code = _run(given, stops)
            stops.ended()
            return code
        except Stopped as stop:
            stops.ended()
            return fail(message, 128 + stop.number)


def _run(arguments: list[str], stops: Stops) -> int:
    """Import what the command needs, run it and turn its errors into one line."""
    if line := missing(arguments[0] if arguments else ""):
        return fail(line)
    try:
        from .app import run

        stops.started()
        return run(arguments)
    except ImportError as error:
        return fail(with_remedy(error))
    except (ValueError, OSError) as error:
        return fail(str(error))
