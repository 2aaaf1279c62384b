"""Studies whose rows call for more units: no core waits for units that the next ones do not depend on.

A unit here ends only when a unit that is named later has ended. A runner that works in rounds would wait for ever.
"""

import dataclasses

import growing
import pytest

from entryclip.lab.engine.job import Job
from entryclip.lab.engine.reproduce import Options, reproduce_all
from entryclip.lab.engine.runner import OnStale
from entryclip.lab.engine.store import load_rows
from entryclip.lab.engine.units import attempt

ROUNDS = [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2), ("b", 2)]


def order(folder):
    return [(row["method"], row["trial"]) for row in load_rows(folder)]


def early(name="early", **fields):
    return dataclasses.replace(growing.named(name, **fields), asked_early=True)


def test_a_study_goes_on_when_its_own_units_have_ended_whatever_others_are_at(tmp_path):
    slow = growing.named("slow", folder=str(tmp_path), methods=("s",), trials=1, waits=("s0<b2",))
    quick = growing.named("quick", folder=str(tmp_path))
    assert reproduce_all([slow, quick], tmp_path / "out", Options(quick=True, jobs=2)) == []
    assert order(tmp_path / "out" / "quick") == ROUNDS
    assert order(tmp_path / "out" / "slow") == [("s", 0)]


def test_a_method_goes_on_while_another_is_under_way_and_the_rows_are_in_the_order_of_rounds(tmp_path):
    counts = []
    options = Options(quick=True, jobs=2, started=lambda finished, total: counts.append((finished, total)))
    study = early(folder=str(tmp_path), waits=("a0<b2",))
    assert reproduce_all([study], tmp_path / "out", options) == []
    assert order(tmp_path / "out" / "early") == ROUNDS  # although all of b ended before a
    assert counts[0] == (0, 2)
    assert counts[-1] == (6, 6)
    assert counts == sorted(counts)  # the bar never goes back


def done_in_order(study, folder, *names):
    """Do the units of a job in this order, each when it has been named, and return the job with the units to do."""
    job = Job(study, study.configured(quick=True), folder / study.name)
    to_do = job.begin(OnStale.REFUSE).to_do
    for name in names:
        (unit,) = [unit for unit in to_do if f"{unit.piece['method']}{unit.piece['trial']}" == name]
        to_do.remove(unit)
        to_do += job.take_outcome(attempt(unit, wait=False), OnStale.REFUSE).to_do
    return job, [f"{unit.piece['method']}{unit.piece['trial']}" for unit in to_do]


def test_a_stopped_run_goes_on_from_units_that_were_named_early(tmp_path):
    study, lines = early(folder=str(tmp_path)), []
    assert done_in_order(study, tmp_path / "out", "b0", "b1", "b2")[1] == ["a0"]  # and then it was stopped
    options = Options(quick=True, jobs=2, say=lines.append)
    assert reproduce_all([study], tmp_path / "out", options) == []
    assert lines == ["early: 3 of 4 units are there and skipped"]
    assert order(tmp_path / "out" / "early") == ROUNDS


def test_without_asked_early_a_study_waits_for_all_of_its_units(tmp_path):
    study = growing.named("late", folder=str(tmp_path))
    assert done_in_order(study, tmp_path, "b0")[1] == ["a0"]
    assert done_in_order(study, tmp_path, "a0")[1] == ["a1", "b1"]


def test_after_a_failure_a_study_is_not_asked_again(tmp_path):
    study = early(folder=str(tmp_path), raises=("b1",))
    job, to_do = done_in_order(study, tmp_path, "b0", "b1")
    assert job.failed
    assert to_do == ["a0"]  # what was named is still done, so that it is there the next time
    assert done_in_order(study, tmp_path, "b1", "a0")[1] == []


def test_a_study_that_must_not_be_asked_early_is_told_so(tmp_path):
    def best_of_both(config, rows):  # needs the rows of both methods to choose
        return [{"method": "a" if any(row["method"] == "a" for row in rows) else "b", "trial": 1}]

    study = dataclasses.replace(early(folder=str(tmp_path)), next_units=best_of_both)
    job, to_do = done_in_order(study, tmp_path, "b0", "a0", "a1", "b1")
    assert to_do == []
    with pytest.raises(ValueError, match=r"early: next_units named 1 units early .* leave asked_early=False"):
        job.parts()
