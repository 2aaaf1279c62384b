"""What is wrong is one line: tests/cli/test_main.py. Here: what is right gets through."""

import subprocess
import sys

import pytest
import tyro

from entryclip.cli.parsing import deferred, one_line, parse


def app_of(command):
    app = tyro.extras.SubcommandApp()
    app.command(deferred(command))
    app.command(deferred(other))
    return app


def other() -> int:
    return 0


def test_the_command_runs_when_called_and_not_before():
    ran = []

    def work(name: str, /, *, ratio: float | None = 1, times: int | None = None, flag: bool = False) -> int:
        ran.append((name, ratio, times, flag))
        return 3

    call = parse(app_of(work), "", ["work", "x", "--ratio", "2", "--times", "4", "--flag"])
    assert not ran
    assert call() == 3
    assert ran == [("x", 2.0, 4, True)]
    assert parse(app_of(work), "", ["work", "x"])() == 3
    assert ran[1] == ("x", 1, None, False)


def test_what_a_command_writes_to_standard_error_is_its_own(capsys):
    def work() -> int:
        sys.stderr.write("╭ a box ╮\n│ of its own │\n")
        raise SystemExit(2)

    call = parse(app_of(work), "", ["work"])
    with pytest.raises(SystemExit):
        call()
    assert capsys.readouterr().err == "╭ a box ╮\n│ of its own │\n"


@pytest.mark.parametrize("environment", [{"COLUMNS": "40"}, {"PYTHONIOENCODING": "ascii"}])
def test_the_same_line_on_every_terminal(environment):
    command = [sys.executable, "-m", "entryclip", "reproduce", "operators", "--jobs", "x"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 2
    assert done.stderr.startswith("entryclip: Error parsing --jobs: must be a whole number, got 'x'; Argument helptext")
    assert done.stderr.endswith("; For full helptext, see entryclip --help\n")
    assert done.stderr.count("\n") == 1


def test_colours_are_left_out():
    red, plain = "\x1b[31;1m", "\x1b[0m"
    box = f"{red}╭─ Title ─╮{plain}\n{red}│{plain} is {red}bad{plain} {red}│{plain}\n{red}╰─────────╯{plain}"
    assert one_line(box) == "is bad"


@pytest.mark.parametrize("printed", ["", "\n", "Title", "╭─ Title ─╮\n╰─────────╯\n"])
def test_something_is_said_even_of_an_empty_box(printed):
    assert one_line(printed) == "unreadable arguments"
