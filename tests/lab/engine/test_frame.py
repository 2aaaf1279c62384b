import math

import pytest

from entryclip import lab
from entryclip.lab.engine.store import save_rows


def test_rows_become_a_frame_and_what_diverged_never_wins(tmp_path):
    save_rows(tmp_path, [{"method": "a", "loss": 2.0}, {"method": "b", "loss": None}, {"method": "c", "loss": 1.0}])
    frame = lab.load(tmp_path)
    assert list(frame["method"]) == ["a", "b", "c"]
    assert math.isnan(frame["loss"][1])
    assert frame["method"][frame["loss"].idxmin()] == "c"
    assert frame["method"][frame["loss"].idxmax()] == "a"


def test_a_folder_without_rows_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no rows in .*: it is one study's folder"):
        lab.load(tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n{"a"')
    with pytest.raises(ValueError, match=r"rows\.jsonl is damaged"):
        lab.load(tmp_path)
