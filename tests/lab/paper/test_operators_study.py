import math

import pytest

from entryclip.lab import paper
from entryclip.lab.engine import provenance, store
from entryclip.lab.engine.reproduce import reproduce
from entryclip.lab.paper.operators import STUDY, study


def test_rows_and_claims():
    rows = list(study.run_unit(study.OperatorsConfig(), {}))
    assert len(rows) == 4 * 601
    at_tau = {(row["operator"], row["threshold"]): row for row in rows if row["x"] == 1.0}
    assert at_tau["smooth_shrinkage", 1.0]["factor"] == pytest.approx(1 / math.e)
    assert at_tau["hard_clip", 1 / math.e]["factor"] == pytest.approx(1 / math.e)
    at_zero = {(row["operator"], row["threshold"]): row["factor"] for row in rows if row["x"] == 0}
    assert at_zero["smooth_shrinkage", 1.0] == pytest.approx(1)
    assert at_zero["soft_threshold", 1.0] == 0
    assert all(claim.holds for claim in STUDY.claims(rows))


@pytest.mark.parametrize(
    "config", [study.OperatorsConfig(points=600), study.OperatorsConfig(tau=0.3, reach=1.1, points=7)]
)
def test_claims_hold_at_other_settings(config):
    rows = list(study.run_unit(config, {}))
    assert all(claim.holds for claim in STUDY.claims(rows))
    assert set(STUDY.figures(rows)) == set(STUDY.captions)


def test_a_broken_operator_breaks_the_claims():
    rows = list(study.run_unit(study.OperatorsConfig(), {}))
    for row in rows:
        if row["operator"] == "smooth_shrinkage":
            row["factor"] *= 1.5
    assert not any(claim.holds for claim in STUDY.claims(rows))


def test_reproduce_leaves_rows_figures_and_record(tmp_path):
    folder = reproduce(STUDY, tmp_path, quick=True)
    assert {path.name for path in folder.iterdir()} == {
        "rows.jsonl",
        "record.json",
        "units",
        *(f"{name}.{suffix}" for name in STUDY.captions for suffix in ("svg", "png")),
    }
    record = store.load_record(folder)
    assert record.config == {"tau": 1.0, "reach": 6.0, "points": 601}
    assert record.config_hash == provenance.config_hash("operators", study.OperatorsConfig())
    assert store.load_rows(folder) == list(study.run_unit(study.OperatorsConfig(), {}))
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".svg", ".png", ".jsonl")}
    reproduce(STUDY, tmp_path)
    assert before == {name: (folder / name).read_bytes() for name in before}  # the same bytes again


def test_bad_input():
    with pytest.raises(ValueError, match="unknown study 'nope': choose from operators"):
        paper.find("nope")
    with pytest.raises(ValueError, match="tau must be positive"):
        study.OperatorsConfig(tau=-1.0)
    with pytest.raises(ValueError, match="points must be"):
        study.OperatorsConfig(points=2)
