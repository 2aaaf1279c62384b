"""The values of a config's fields as they are typed."""

import dataclasses
from dataclasses import dataclass
from typing import Literal

import pytest

from entryclip.lab.engine.grid import grid, single_values
from entryclip.lab.paper import find

OPERATORS = find("operators")


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ([], "nothing to sweep over: give --over field=v1,v2 with a field of tau, reach, points"),
        (["tau"], "'tau' is not of the form field=value,value"),
        (["tau="], "'tau=' is not of the form field=value,value"),
        (["nope=1"], "operators has no field 'nope': choose from tau, reach, points"),
        (["tau=x"], "tau = 'x' is not a number"),
        (["points=1.5"], "points = '1.5' is not a whole number"),
        (["tau=1,1.0"], "has the same value twice"),
        (["tau=1", "tau=2"], "'tau' is given twice"),
    ],
)
def test_bad_grids(over, words):
    with pytest.raises(ValueError, match=words):
        grid(OPERATORS, over)


@dataclass(frozen=True)
class Config:
    kind: Literal["hard", "smooth"] = "hard"
    on: bool = True
    rate: float | None = None
    names: tuple[str, ...] = ()
    sizes: tuple[tuple[int, int], ...] = ((2, 3),)


def test_values_of_every_type():
    study = dataclasses.replace(OPERATORS, config=Config)
    found = grid(study, ["kind=hard,smooth", "on=true,false", "rate=none,0.5", "names=a:b,c"])
    expected = {"kind": ["hard", "smooth"], "on": [True, False], "rate": [None, 0.5], "names": [("a", "b"), ("c",)]}
    assert found == expected
    assert grid(study, ["names=none", "sizes=1/2:3/4,5/6"]) == {"names": [()], "sizes": [((1, 2), (3, 4)), ((5, 6),)]}
    with pytest.raises(ValueError, match="sizes = '1' is not 2 values joined by slashes"):
        grid(study, ["sizes=1:2"])
    with pytest.raises(ValueError, match="kind = 'soft' is not one of hard, smooth"):
        grid(study, ["kind=soft"])
    with pytest.raises(ValueError, match="on = '1' is not one of true, false"):
        grid(study, ["on=1"])


def test_single_values():
    assert single_values(OPERATORS, ["tau=2", "points=7"]) == {"tau": 2.0, "points": 7}
    assert single_values(OPERATORS, []) == {}
    with pytest.raises(ValueError, match="--set takes one value for tau, got 2; `entryclip sweep` takes several"):
        single_values(OPERATORS, ["tau=1,2"])
