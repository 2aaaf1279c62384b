"""The spike replay: one start, the same batches, and what stands out."""

import dataclasses

import pytest

from entryclip.lab.paper.spike import STUDY
from entryclip.lab.paper.spike.study import SPIKE_METHODS, SpikeConfig, run_unit


@pytest.fixture(scope="module")
def rows(shards):
    return list(run_unit(dataclasses.replace(SpikeConfig.quick(), data=str(shards), before=25), {}))


def losses(rows, method):
    return {row["step"]: row["loss"] for row in rows if row["kind"] == "loss" and row["method"] == method}


def test_all_methods_start_from_the_same_checkpoint_and_see_the_same_batches(rows):
    first = losses(rows, "adamw")
    assert sorted(first) == list(range(-25, 15))
    for method in SPIKE_METHODS:
        found = losses(rows, method)
        assert all(
            found[step] == first[step] for step in range(-25, 1)
        )  # also the first corrupted batch's: no step yet
    assert losses(rows, "post-smooth")[2] != first[2]


def test_the_corrupted_batches_spike(rows):
    found = losses(rows, "adamw")
    assert min(found[step] for step in range(4)) > max(found[step] for step in range(-5, 0)) + 1
    assert {row["step"] for row in rows if row["kind"] == "loss" and row["corrupted"]} == {0, 1, 2, 3}


def test_the_entry_is_the_largest_of_its_matrix(rows):
    (entry,) = [row for row in rows if row["kind"] == "entry"]
    (matrix,) = [row for row in rows if row["kind"] == "matrix"]
    values = matrix["values"]
    assert values[matrix["row"]][matrix["column"]] == max(map(max, values))
    assert entry["name"].startswith("blocks.")
    assert entry["name"] in entry["text"]


def test_claims_and_figure(rows):
    assert len(STUDY.claims(rows)) == 5
    assert STUDY.figures(rows).keys() == STUDY.captions.keys()


def test_bad_configs():
    for name, value, least in (("after", 10, 14), ("before", 9, 10), ("corrupted", 0, 1)):
        with pytest.raises(ValueError, match=f"{name} must be at least {least}, got {value}"):
            SpikeConfig(**{name: value})
