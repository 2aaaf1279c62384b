"""The list of commands. A new command is a function in a file of its own, a name here and a line in `extras`."""

from collections.abc import Sequence

import tyro

from .bench import bench
from .data import fineweb, prepare
from .diagnose import diagnose
from .parsing import Command, deferred, parse
from .report import report
from .studies import reproduce, sweep
from .theory import theory
from .train import train

COMMANDS: tuple[Command, ...] = (reproduce, sweep, train, diagnose, theory, bench, report)
DATA: tuple[Command, ...] = (prepare, fineweb)  # `entryclip data ...`
DESCRIPTION = "Entry-wise clipping of gradients: diagnose a model, run the paper's studies, train its language model."


def run(arguments: Sequence[str]) -> int:
    """Run the command that the arguments name and return its exit code."""
    app, data = tyro.extras.SubcommandApp(), tyro.extras.SubcommandApp()
    for command in COMMANDS:
        app.command(deferred(command))
    for command in DATA:
        data.command(deferred(command))
    app.command(data, name="data", help="Make token shards for the language model from text, or download them.")
    return int(parse(app, DESCRIPTION, arguments)())
