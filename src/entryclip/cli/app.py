"""The list of commands. A new one is a function in a file of its own, and its name here."""

from collections.abc import Callable, Sequence

import tyro

from .data import prepare
from .experiments import reproduce, sweep
from .report import report
from .theory import theory

COMMANDS: tuple[Callable[..., int], ...] = (reproduce, sweep, theory, report)
DATA: tuple[Callable[..., int], ...] = (prepare,)  # `entryclip data ...`
DESCRIPTION = "Spectral control of gradients by entry-wise clipping: the paper's experiments and what came of them."


def run(arguments: Sequence[str]) -> int:
    """Run the command that the arguments ask for; returns its exit code."""
    app, data = tyro.extras.SubcommandApp(), tyro.extras.SubcommandApp()
    for command in COMMANDS:
        app.command(command)
    for command in DATA:
        data.command(command)
    app.command(data, name="data", help="Text to shards of tokens, for the language model.")
    settings = tyro.conf.FlagCreatePairsOff, tyro.conf.UseAppendAction
    return int(app.cli(prog="entryclip", description=DESCRIPTION, args=arguments, config=settings))
