"""The `entryclip` command. Each subcommand has a file of its own; `app` lists them.

Only this package reads arguments, paths and the environment.
"""

import shlex
import sys
from collections.abc import Sequence

from .extras import missing, with_remedy
from .stopping import Stopped, stops_raised
from .terminal import fail


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code.

    0 is success, 1 a unit of work that failed, 2 bad input or a missing package (one line on standard error), and
    128 + n a stop by signal n.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if line := missing(arguments[0] if arguments else ""):
        return fail(line)
    from .app import run

    try:
        with stops_raised():
            return run(arguments)
    except ImportError as error:
        return fail(with_remedy(error))
    except (ValueError, OSError) as error:
        return fail(str(error))
    except Stopped as stop:
        again = shlex.join(["entryclip", *arguments])
        return fail(f"stopped; what is finished is kept, and the same command goes on: {again}", 128 + stop.number)
