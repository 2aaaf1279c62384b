"""What a study promises the engine: it travels to other processes, and its record reads back as written."""

import dataclasses
import json
import pickle

import numpy as np
import pytest
import toy

from entryclip import lab
from entryclip.lab.engine.provenance import Provenance
from entryclip.lab.engine.store import Failure, Record, load_record, save_record
from entryclip.lab.engine.study import Claim, DataSource
from entryclip.lab.paper import NAMES, find


@pytest.mark.parametrize("name", NAMES)
def test_a_study_is_pickled_by_name(name):
    study = find(name)
    assert pickle.loads(pickle.dumps(study)) == study
    assert study.name == name
    assert study.config.quick() != study.config() or name == "operators"  # which takes no time


def test_a_study_has_one_unit_no_tables_and_no_data_unless_it_says_so():
    small = dataclasses.replace(toy.STUDY, units=lab.engine.study.one_unit, tables=lab.engine.study.no_tables)
    assert small.units(toy.Config()) == [{}]
    assert small.next_units(toy.Config(), []) == []
    assert small.tables([]) == {}
    assert small.present_data(toy.Config()) is None


def test_data_that_is_not_there_counts_as_none(tmp_path):
    def data(config):
        return DataSource(tmp_path, (tmp_path / "hash").read_text())

    study = dataclasses.replace(toy.STUDY, data=data)
    assert study.present_data(toy.Config()) is None
    (tmp_path / "hash").write_text("abc")
    assert study.present_data(toy.Config()) == DataSource(tmp_path, "abc")


def test_a_config_is_quick_or_full_with_changes():
    assert toy.STUDY.configured() == toy.Config()
    assert toy.STUDY.configured(quick=True, changes={"seconds": 1.0}) == toy.Config(count=2, seconds=1.0)


def test_a_claim_holds_in_python_also_where_numpy_judged():
    assert Claim("a", "b", np.float64(2) > 1).holds is True


def test_a_record_reads_back_as_it_was_written(tmp_path):
    record = Record(
        "toy",
        {"count": 1},
        "abc",
        Provenance({"torch": "2"}, "3.11", "x86", None, "code", "data"),
        1.5,
        claims=(Claim("it is", "so", True),),
        tables={"caption": [{"a": 1}]},
        over={"count": [1, 2]},
        failed=(Failure("toy", {"count": 2}, "it broke"),),
    )
    save_record(tmp_path, record)
    assert load_record(tmp_path) == record
    saved = json.loads((tmp_path / "record.json").read_text())
    assert saved["claims"] == [{"claim": "it is", "measured": "so", "holds": True}]
    assert (saved["versions"], saved["data"]) == ({"torch": "2"}, "data")  # side by side with the rest, as ever
    (tmp_path / "record.json").write_text(json.dumps({**saved, "claims": [{"claim": "half"}]}))
    with pytest.raises(ValueError, match=r"record\.json is damaged"):
        load_record(tmp_path)


def test_the_lab_is_loaded_by_name():
    assert set(dir(lab)) == {"engine", "lm", "load", "paper", "report"}
    assert lab.paper.find is find
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        lab.nothing  # noqa: B018
