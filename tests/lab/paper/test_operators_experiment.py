import math

import pytest

from entryclip.lab import paper as experiments
from entryclip.lab.engine import provenance, store
from entryclip.lab.engine.reproduce import reproduce
from entryclip.lab.paper.operators import study as operators


def test_rows_and_claims():
    rows = list(operators.run(operators.Config()))
    assert len(rows) == 4 * 601
    at_tau = {(row["operator"], row["threshold"]): row for row in rows if row["x"] == 1.0}
    assert at_tau["smooth_shrinkage", 1.0]["factor"] == pytest.approx(1 / math.e)
    assert at_tau["hard_clip", 1 / math.e]["factor"] == pytest.approx(1 / math.e)
    at_zero = {(row["operator"], row["threshold"]): row["factor"] for row in rows if row["x"] == 0}
    assert at_zero["smooth_shrinkage", 1.0] == pytest.approx(1)
    assert at_zero["soft_threshold", 1.0] == 0
    assert all(claim["holds"] for claim in operators.claims(rows))


@pytest.mark.parametrize("config", [operators.Config(points=600), operators.Config(tau=0.3, reach=1.1, points=7)])
def test_claims_hold_at_other_settings(config):
    rows = list(operators.run(config))
    assert all(claim["holds"] for claim in operators.claims(rows))
    assert set(operators.plot(rows)) == set(operators.CAPTIONS)


def test_a_broken_operator_breaks_the_claims():
    rows = list(operators.run(operators.Config()))
    for row in rows:
        if row["operator"] == "smooth_shrinkage":
            row["factor"] *= 1.5
    assert not any(claim["holds"] for claim in operators.claims(rows))


def test_reproduce_leaves_rows_figures_and_record(tmp_path):
    folder = reproduce("operators", tmp_path, quick=True)
    assert {path.name for path in folder.iterdir()} == {
        "rows.jsonl",
        "record.json",
        "units",
        *(f"{name}.{suffix}" for name in operators.CAPTIONS for suffix in ("svg", "png")),
    }
    record = store.load_record(folder)
    assert record["config"] == {"tau": 1.0, "reach": 6.0, "points": 601}
    assert record["config_hash"] == provenance.config_hash(operators.Config())
    assert store.load_rows(folder) == list(operators.run(operators.Config()))
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".svg", ".png", ".jsonl")}
    reproduce("operators", tmp_path)
    assert before == {name: (folder / name).read_bytes() for name in before}  # the same bytes again


def test_bad_input():
    with pytest.raises(ValueError, match="unknown experiment 'nope': choose from operators"):
        experiments.find("nope")
    with pytest.raises(ValueError, match="tau must be positive"):
        operators.Config(tau=-1.0)
    with pytest.raises(ValueError, match="points must be"):
        operators.Config(points=2)
