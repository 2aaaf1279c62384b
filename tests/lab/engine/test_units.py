"""One unit and its file: what is trusted, what is done again."""

import dataclasses
import json

import pytest
import toy

from entryclip.lab.engine import provenance
from entryclip.lab.engine.config_fields import extent_field
from entryclip.lab.engine.files import locked, read_sealed, write_sealed
from entryclip.lab.engine.reproduce import Options, reproduce_all
from entryclip.lab.engine.runner import OnStale, execute, plan
from entryclip.lab.engine.store import load_record, load_rows
from entryclip.lab.engine.units import State, Unit, attempt, first_units, read


@pytest.fixture
def one(monkeypatch, tmp_path):
    """The toy with one unit, so that it is done in this process."""
    monkeypatch.setenv("TOY_LOG", str(tmp_path / "log"))
    return quick(count=1)


def quick(**fields):
    """The toy with a quick config of these fields."""

    class Config(toy.Config):
        quick = classmethod(lambda cls: cls(**fields))

    return dataclasses.replace(toy.STUDY, config=Config)


@pytest.fixture
def unit(one, tmp_path):
    (unit,) = first_units(one, toy.Config(count=1), tmp_path / "toy")
    return unit


def times_done(tmp_path):
    return len((tmp_path / "log").read_text().split()) if (tmp_path / "log").exists() else 0


def test_a_units_file_says_what_made_it(unit):
    assert attempt(unit, wait=False).state is State.DONE
    found = read_sealed(unit.path)
    assert found["rows"] == toy.run_unit(unit.config, unit.piece)
    assert found["config"]["count"] == 1
    assert (found["unit"], found["seed"]) == ({"i": 0, "seed": 10}, 10)
    assert found["versions"] == provenance.versions()
    assert {"commit", "code", "python", "machine", "seconds"} <= found.keys()
    assert [path.name for path in unit.path.parent.iterdir()] == [unit.path.name]  # no lock, no temporary file
    assert attempt(unit, wait=False).state is State.SKIPPED


def flip(path):
    data = bytearray(path.read_bytes())
    at = data.index(b'"value"') + 12  # inside the number
    data[at] ^= 1
    path.write_bytes(bytes(data))


DAMAGES = {
    "flipped bit": (flip, "damaged"),
    "cut off": (lambda path: path.write_bytes(path.read_bytes()[:-20]), "damaged: not JSON"),
    "empty": (lambda path: path.write_bytes(b""), "damaged: not JSON"),
    "binary": (lambda path: path.write_bytes(bytes(range(256))), "damaged: not JSON"),
    "deep": (lambda path: path.write_text("[" * 10**5), "damaged: not JSON"),
    "foreign": (lambda path: path.write_text('{"rows": [{"value": 1}]}'), "foreign: it has no checksum"),
    "of another unit": (
        lambda path: write_sealed(path, {"experiment": "toy", "rows": []}),
        "foreign: it holds another",
    ),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_or_foreign_file_is_named_and_done_again(unit, kind):
    attempt(unit, wait=False)
    before = read(unit).rows
    damage, words = DAMAGES[kind]
    damage(unit.path)
    found = plan([unit])
    assert found.to_do == [unit]
    (note,) = found.notes
    assert f"{unit.path} is {words}" in note
    assert "computed again" in note
    assert execute([unit])[0].state is State.DONE
    assert read(unit).rows == before


def test_stale_temporary_files_are_cleared_by_the_next_writer(unit):
    stale = unit.path.with_name(f".{unit.path.name}.abc.tmp")
    stale.parent.mkdir(parents=True)
    stale.write_text("{")
    attempt(unit, wait=False)
    assert not stale.exists()


def test_a_unit_under_way_elsewhere_is_left_to_it(unit):
    with locked(unit.path, wait=False) as ours:
        assert ours
        assert attempt(unit, wait=False).state is State.BUSY
    assert attempt(unit, wait=True).state is State.DONE


def test_changed_config_is_another_unit(unit):
    (other,) = first_units(unit.study, toy.Config(count=1, seconds=0.001), unit.folder)
    assert other.path != unit.path


def test_a_study_that_is_given_more_units_goes_on_with_those_that_are_there(one, tmp_path):
    @dataclasses.dataclass(frozen=True)
    class Extended(toy.Config):
        count: int = extent_field(1)

    (first,) = first_units(one, Extended(), tmp_path / "toy")
    assert attempt(first, wait=False).state is State.DONE
    again, more = first_units(one, Extended(count=2), tmp_path / "toy")
    assert again.path == first.path != more.path
    assert read(again) is not None
    assert read(more) is None
    (slower, _) = first_units(one, Extended(count=2, seconds=0.001), tmp_path / "toy")
    assert slower.path != first.path


def test_two_units_of_one_description_are_refused(tmp_path):
    twice = dataclasses.replace(toy.STUDY, units=lambda config: [{"i": 0}, {"i": 0}])
    with pytest.raises(ValueError, match="toy: two units have the same description"):
        first_units(twice, toy.Config(), tmp_path)
    empty = dataclasses.replace(toy.STUDY, units=lambda config: [])
    with pytest.raises(ValueError, match="toy: there are no units"):
        first_units(empty, toy.Config(), tmp_path)


def test_units_of_other_code_or_versions_are_refused_recomputed_or_kept(unit):
    attempt(unit, wait=False)
    found = read_sealed(unit.path)
    write_sealed(unit.path, {**found, "versions": {**found["versions"], "torch": "1.0"}, "code": "x", "commit": "abc"})
    with pytest.raises(ValueError, match=r"torch 1\.0 \(now .*the code at commit abc \(now .*--stale recompute"):
        plan([unit])
    assert plan([unit], on_stale=OnStale.KEEP).finished == [unit]
    assert plan([unit], on_stale=OnStale.RECOMPUTE).to_do == [unit]
    assert attempt(unit, wait=False).state is State.DONE
    assert plan([unit]).finished == [unit]


def test_a_failure_is_put_down_and_taken_back_by_success(tmp_path):
    unit = Unit(toy.STUDY, toy.Config(count=1, raises=(0,)), {"i": 0, "seed": 10}, tmp_path / "toy")
    (outcome,) = execute([unit])
    assert (outcome.state, outcome.reason) == (State.FAILED, "ZeroDivisionError: unit 0 <b>divided</b> by zero")
    assert "run_unit" in read_sealed(unit.failure)["traceback"]
    assert not unit.path.exists()
    unit = dataclasses.replace(
        unit, study=dataclasses.replace(toy.STUDY, run_unit=lambda config, piece: [{"value": 1}])
    )
    assert execute([unit])[0].state is State.DONE
    assert not unit.failure.exists()


def test_reproduce_says_what_it_skips_and_redraws_what_only_looks_different(one, tmp_path):
    lines = []
    options = Options(quick=True, say=lines.append)
    assert reproduce_all([one], tmp_path, options) == []
    assert (lines, times_done(tmp_path)) == ([], 1)
    assert load_rows(tmp_path / "toy") == toy.run_unit(toy.Config(count=1), {"i": 0, "seed": 10})
    done = times_done(tmp_path)
    reproduce_all([one], tmp_path, options)
    assert lines.pop() == f"toy: nothing to do, {tmp_path}/toy is complete"
    (tmp_path / "toy" / "rows.jsonl").write_text('{"value": 0}\n')  # not what the record says
    reproduce_all([one], tmp_path, options)
    assert lines.pop() == "toy: 1 of 1 units are there and skipped"
    assert load_rows(tmp_path / "toy")[0]["i"] == 0
    record = json.loads((tmp_path / "toy" / "record.json").read_text())
    (tmp_path / "toy" / "record.json").write_text(json.dumps({**record, "drawing": "other", "claims": []}))
    reproduce_all([one], tmp_path, options)
    assert "figures and claims are made again" in lines.pop()
    assert [dataclasses.asdict(each) for each in load_record(tmp_path / "toy").claims] == record["claims"]
    reproduce_all([quick(count=1, seconds=0.01)], tmp_path, options)
    assert "are of another config and are replaced; its units are kept" in lines.pop()
    assert times_done(tmp_path) == done + 1
    assert len(list((tmp_path / "toy" / "units").glob("*.json"))) == 2


def test_a_quick_study_that_draws_fewer_figures_than_it_has_captions_for_is_not_drawn_again(one, tmp_path):
    study, lines = dataclasses.replace(one, captions={"full": "A figure of the full study alone."}), []
    for _ in range(2):
        reproduce_all([study], tmp_path, Options(quick=True, say=lines.append))
    assert lines == [f"toy: nothing to do, {tmp_path}/toy is complete"]


def test_results_of_other_code_are_refused_also_without_their_units(one, tmp_path):
    reproduce_all([one], tmp_path, Options(quick=True))
    path = tmp_path / "toy" / "record.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "code": "other"}))
    with pytest.raises(ValueError, match=f"{tmp_path}/toy was made by the code at commit"):
        reproduce_all([one], tmp_path, Options(quick=True))
    reproduce_all([one], tmp_path, Options(quick=True, on_stale=OnStale.KEEP))
    assert load_record(tmp_path / "toy").made_by.code == "other"  # kept, and it still says so
    reproduce_all([one], tmp_path, Options(quick=True, on_stale=OnStale.RECOMPUTE))
    assert load_record(tmp_path / "toy").made_by.code != "other"


def test_a_failed_unit_keeps_the_results_that_were_there(one, tmp_path):
    reproduce_all([one], tmp_path, Options(quick=True))
    before = (tmp_path / "toy" / "rows.jsonl").read_bytes()
    (failed,) = reproduce_all([quick(count=1, diverges=(0,))], tmp_path, Options(quick=True))
    assert "value = nan" in failed.reason
    assert (tmp_path / "toy" / "rows.jsonl").read_bytes() == before
