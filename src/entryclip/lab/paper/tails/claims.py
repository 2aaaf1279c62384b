"""How often the verdict on a tail is right, and how often the interval covers the true index."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...engine.study import Claim, Row
from .study import CASES, TRUE_INDEX, TailCase, TailEstimate


class Accuracy(NamedTuple):
    """Shares of the draws of a case: judged right, judged wrong, and with the true index inside the interval."""

    right: float
    wrong: float
    covered: float


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Check the verdicts on the laws and their mixtures, and the intervals."""
    found = accuracies(TailEstimate.from_rows(rows))
    groups = {
        "on the laws themselves": [case for case in CASES if case.share == 1],
        "on their 5 % mixtures at scale 3": [case for case in CASES if case.scale == 3],
        "on their 5 % mixtures at scale 1": [case for case in CASES if (case.share, case.scale) == (0.05, 1.0)],
    }
    covered = [f"{case_label(case)} {found[case].covered:.0%}" for case in CASES if TRUE_INDEX[case.law]]
    return [
        *(
            Claim(
                f"the verdict is right {words}, in nine of ten draws of each",
                ", ".join(_shares(case, found[case]) for case in cases),
                min(found[case].right for case in cases) >= 0.9,
            )
            for words, cases in groups.items()
        ),
        Claim(
            "the interval covers the true index in nine of ten draws of each",
            ", ".join(covered),
            min(each.covered for each in found.values()) >= 0.9,
        ),
    ]


def accuracies(estimates: Sequence[TailEstimate]) -> dict[TailCase, Accuracy]:
    """The accuracy of the estimates of each case."""
    return {case: _accuracy([each for each in estimates if each.case == case], TRUE_INDEX[case.law]) for case in CASES}


def _accuracy(estimates: list[TailEstimate], truth: float | None) -> Accuracy:
    good, bad = ("not a power law", "power law") if truth is None else ("power law", "not a power law")
    return Accuracy(
        right=float(np.mean([each.verdict == good for each in estimates])),
        wrong=float(np.mean([each.verdict == bad for each in estimates])),
        covered=float(np.mean([truth is None or each.low <= truth <= each.high for each in estimates])),
    )


def case_label(case: TailCase) -> str:
    """The name of a case in figures and claims, e.g. `t_2, 5 % x 3`."""
    return case.law if case.share == 1 else f"{case.law}, 5 % x {case.scale:.0f}"


def _shares(case: TailCase, found: Accuracy) -> str:
    return f"{case.law} {found.right:.0%}" + (f" (wrong {found.wrong:.0%})" if found.wrong else "")
