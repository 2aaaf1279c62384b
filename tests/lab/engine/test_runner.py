"""The faults a long run meets, done for real: signals, kill -9, a full disk, a second command, a process that dies."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
import toy

from entryclip import lab

GRID = "sweep", "toy", "--over", "count=8", "seconds=0.25"


@pytest.fixture
def commands(tmp_path):
    return toy.Commands(tmp_path)


def start(commands, *arguments, **options):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(
        commands.line(*arguments), env=commands.environment, **pipes, start_new_session=True, **options
    )


def run(commands, *arguments):
    process = start(commands, *arguments)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def rows_of_a_sweep(commands):
    (path,) = (commands.out / "sweeps").glob("*/rows.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def undisturbed(**fields):
    """The rows that an undisturbed sweep leaves."""
    config = toy.Config(**fields)
    return [{**fields, **row} for unit in toy.units(config) for row in toy.run_unit(config, unit)]


def test_stopped_three_ways_it_goes_on_and_loses_at_most_the_units_under_way(commands):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
        finished = len(commands.finished())
        process = start(commands, *GRID)
        commands.wait_for(finished + 1)
        # Ctrl-C in a terminal reaches the workers too
        (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
        out, err = process.communicate(timeout=30)
        assert f"{finished} of 8 units are there and skipped" in out or not finished
        if number == signal.SIGKILL:
            assert process.returncode == -number
        else:
            assert process.returncode == 128 + number
            assert err.startswith("entryclip: stopped; what is finished is kept")
            assert "goes on: entryclip sweep toy --over count=8 seconds=0.25 --out" in err
            assert err.count("entryclip: ") == 1  # joblib may add a line of its own about its semaphores
            assert "Traceback" not in err
    (commands.out / "toy" / "units" / ".0123456789abcdef.json.x.tmp").write_text("left behind")
    kept = len(commands.finished())
    code, out, err = run(commands, *GRID)
    assert code == 0, err
    assert f"{kept} of 8 units are there and skipped" in out
    assert rows_of_a_sweep(commands) == undisturbed(count=8, seconds=0.25)
    assert set(commands.done()) == set(range(8))
    assert len(commands.done()) <= 8 + 3 * 2  # two workers, stopped three times


def test_two_commands_at_once_share_the_work(commands):
    both = [start(commands, *GRID, "--jobs", 1) for _ in range(2)]
    for process in both:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
    assert commands.done() == list(range(8))  # each unit once
    assert rows_of_a_sweep(commands) == undisturbed(count=8, seconds=0.25)


def test_a_unit_that_raises_diverges_or_dies_leaves_the_others_alone(commands):
    code, out, err = run(
        commands, "sweep", "toy", "--over", "count=5", "raises=1", "diverges=2", "dies=3", "--jobs", "2"
    )
    assert code == 1
    for unit, reason in (
        (1, "ZeroDivisionError: unit 1 <b>divided</b> by zero"),
        (2, "ValueError: row 0 has value = nan: rows hold finite numbers, or None for what diverged"),
        (3, "its process died"),
    ):
        assert f'failed: toy {{"i": {unit}, "seed": {10 + unit}}}: {reason}' in err
    assert "3 units failed; the others are kept" in err
    assert [row["i"] for row in rows_of_a_sweep(commands)] == [0, 4]
    (record,) = (commands.out / "sweeps").glob("*/record.json")
    assert [failure["reason"].split(":")[0] for failure in json.loads(record.read_text())["failed"]] == [
        "ZeroDivisionError",
        "ValueError",
        "its process died",
    ]
    assert "report: " in out


def test_failed_units_in_an_empty_folder_are_code_1(commands):
    code, _, err = run(commands, "reproduce", "toy", "--set", "count=2", "raises=1", "dies=0", "--jobs", "2")
    assert code == 1
    assert "ZeroDivisionError" in err
    assert "its process died" in err
    assert err.splitlines()[-1] == "2 units failed; the others are kept, and the same command tries again"


SCRIPT = """
mount -t tmpfs -o size=400k none {out} && cd {out} || exit 77
{command} 2> {folder}/first; echo $? > {folder}/code
mkdir {folder}/seen && cp -r {out}/. {folder}/seen
mount -o remount,size=50m {out}
{command} > {folder}/second || exit 1
cp -r {out}/. {folder}/whole
"""


def test_a_full_disk_is_said_and_leaves_a_store_that_goes_on(commands, tmp_path):
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare to mount a small disk")
    commands.out.mkdir()
    line = subprocess.list2cmdline(commands.line("sweep", "toy", "--over", "count=4", "size=2500", "--jobs", 1))
    script = SCRIPT.format(out=commands.out, folder=tmp_path, command=line)
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script], env=commands.environment, capture_output=True, text=True, timeout=200
    )
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip(f"cannot mount a small disk here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "code").read_text() == "2\n"
    said = (tmp_path / "first").read_text()
    assert "no space to write" in said
    assert "make room and run the same command again" in said
    assert said.count("entryclip: ") == 1  # joblib may add a line of its own about its semaphores
    assert "Traceback" not in said
    kept = list((tmp_path / "seen" / "toy" / "units").glob("*.json"))
    assert 0 < len(kept) < 4
    assert all(json.loads(path.read_text())["rows"] for path in kept)  # what is there is whole
    assert f"{len(kept)} of 4 units are there and skipped" in (tmp_path / "second").read_text()
    (folder,) = (tmp_path / "whole" / "sweeps").iterdir()
    assert len(lab.load(folder)) == 4 * 2500


CLUSTER = """
from distributed import LocalCluster
if __name__ == "__main__":
    here = {"processes": False, "protocol": "tcp://", "dashboard_address": None}
    with LocalCluster(n_workers=1, threads_per_worker=2, **here) as cluster:
        print(cluster.scheduler_address, flush=True)
        input()
"""


def test_a_sweep_on_a_dask_cluster(commands):
    pytest.importorskip("distributed")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", CLUSTER], env=commands.environment, **pipes) as cluster:
        try:
            address = cluster.stdout.readline().strip()
            fields = "sweep", "toy", "--over", "count=2,3", "raises=2"
            code, _, err = run(commands, *fields, "--backend", "dask", "--cluster", address)
        finally:
            cluster.communicate("\n", timeout=30)
    assert code == 1, err
    assert 'failed: toy {"i": 2, "seed": 12}' in err
    assert commands.done() == [0, 0, 1, 1]
    assert [(row["count"], row["i"]) for row in rows_of_a_sweep(commands)] == [(2, 0), (2, 1), (3, 0), (3, 1)]
