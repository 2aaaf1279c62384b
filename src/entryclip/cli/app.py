"""The list of commands. A new one is a function in a file of its own, and its name here."""

from collections.abc import Sequence

import tyro

from .data import fineweb, prepare
from .diagnose import diagnose
from .experiments import reproduce, sweep
from .parsing import Command, deferred, parse
from .report import report
from .theory import theory
from .train import train

COMMANDS: tuple[Command, ...] = (reproduce, sweep, train, diagnose, theory, report)
DATA: tuple[Command, ...] = (prepare, fineweb)  # `entryclip data ...`
DESCRIPTION = "Spectral control of gradients by entry-wise clipping: the paper's experiments and what came of them."


def run(arguments: Sequence[str]) -> int:
    """Run the command that the arguments ask for; returns its exit code."""
    app, data = tyro.extras.SubcommandApp(), tyro.extras.SubcommandApp()
    for command in COMMANDS:
        app.command(deferred(command))
    for command in DATA:
        data.command(deferred(command))
    app.command(data, name="data", help="Shards of tokens for the language model: made from text, or fetched.")
    return int(parse(app, DESCRIPTION, arguments)())
