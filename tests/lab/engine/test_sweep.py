import pytest

from entryclip import lab
from entryclip.lab.engine.files import read_sealed
from entryclip.lab.engine.grid import grid
from entryclip.lab.engine.reproduce import Options
from entryclip.lab.engine.sweep import sweep

OPERATORS = lab.paper.find("operators")


def test_one_row_per_point_of_the_grid_and_row_of_the_study(tmp_path):
    lines = []
    points = {"points": [7, 9], "tau": [2.0]}
    folder, failed = sweep(OPERATORS, points, tmp_path, Options(jobs=1, say=lines.append))
    frame = lab.load(folder)
    assert failed == []
    assert frame.groupby("points").size().to_dict() == {7: 28, 9: 36}
    assert set(frame["tau"]) == {2.0}
    expected = list(OPERATORS.run_unit(OPERATORS.config(points=7, tau=2.0), {}))
    assert frame[frame["points"] == 7].drop(columns=["points", "tau"]).to_dict("records") == expected
    again, _ = sweep(OPERATORS, points, tmp_path, Options(jobs=1, say=lines.append))
    assert again == folder
    assert lines == ["operators: 2 of 2 units are there and skipped"]
    units = [read_sealed(path) for path in (tmp_path / "operators" / "units").glob("*.json")]
    assert sorted(unit["config"]["points"] for unit in units) == [7, 9]


def test_a_value_out_of_range_is_refused_before_anything_runs(tmp_path):
    with pytest.raises(ValueError, match=r"tau=-1\.0: tau must be positive"):
        sweep(OPERATORS, grid(OPERATORS, ["tau=1,-1"]), tmp_path, Options())
    assert list(tmp_path.iterdir()) == []
