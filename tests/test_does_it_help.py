"""The page docs/does-it-help.md: its lines, their verdicts and their figure, from the rows under results/."""

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.answers import CLEAN, GRIDS, ROOT, Answer, answers, judged_together
from benchmarks.does_it_help import figure, most_important, shown
from benchmarks.grids import grid_lines

from entryclip.lab.engine.store import load_rows

RESULTS = ROOT / "results"


@pytest.fixture(scope="module")
def found():
    return answers()


def an_answer(*differences, situation="here", method="pre-smooth"):
    return Answer(situation, method, method, np.array(differences), "1M", "rate-grid")


def test_no_two_lines_answer_the_same_question(found):
    """A method that a grid has at its own best rate replaces the line of the older search."""
    assert Counter((each.situation, each.name) for each in found).most_common(1)[0][1] == 1
    in_grids = {
        row["method"]
        for folder, name in GRIDS.items()
        if name == CLEAN
        for row in load_rows(RESULTS / folder / "rate-grid")
    }
    assert "normuon" in in_grids
    assert all(each.study == "rate-grid" for each in found if each.situation == CLEAN and each.method in in_grids)


def test_every_line_has_seeds_and_a_cost(found):
    assert all(len(each.differences) >= 3 and each.cost > 0 for each in found)


def test_verdicts_are_corrected_for_the_lines_of_a_situation():
    alone = an_answer(-0.10, -0.13, -0.08)
    assert judged_together([alone])[0].verdict == "helps"
    others = [an_answer(0.3, -0.2, 0.1, method=f"m{i}") for i in range(9)]
    assert judged_together([alone, *others])[0].verdict == "seems to help"
    elsewhere = [replace(each, situation="there") for each in others]
    assert judged_together([alone, *elsewhere])[0].verdict == "helps"


def test_what_no_interval_or_no_size_supports_is_not_called_help():
    assert an_answer(-0.10, 0.05, -0.08).verdict == "is not seen to matter"
    assert an_answer(-2e-4, -2.1e-4, -1.9e-4).verdict == "changes nothing of use"  # certain, and of no use
    assert judged_together([an_answer(0.10, 0.13, 0.08)])[0].verdict == "harms"


def test_the_readme_shows_five_and_the_figure_all(found):
    assert len(most_important(found)) == 5
    drawn = figure(found)
    numbers = [text.get_text() for axis in drawn.axes for text in axis.texts]
    assert Counter(numbers) == Counter(shown(each.effect.value) for each in found)


def test_a_grid_shows_every_method_at_the_best_of_its_tuning():
    rows = load_rows(RESULTS / "rate-grid-muon" / "rate-grid")
    lines = {line["method"]: line for line in grid_lines(rows)}

    def best(method):
        tuned = {}
        for row in rows:
            if (row["stage"], row["method"]) == ("tuning", method):
                tuned.setdefault(row["lr"], []).append(row["loss"])
        return min(tuned, key=lambda lr: np.mean(tuned[lr]))

    def reported(method):
        place = ("report", method, best(method))
        return {row["seed"]: row["loss"] for row in rows if (row["stage"], row["method"], row["lr"]) == place}

    own, muon = reported("normuon"), reported("muon")
    assert own.keys() == muon.keys()
    assert (lines["NorMuon"]["best"], lines["Muon"]["best"]) == (f"{best('normuon'):g}", f"{best('muon'):g}")
    apart = np.mean([own[seed] - muon[seed] for seed in own])
    assert lines["NorMuon"]["less without a clip"].startswith(f"{apart:+.4f} [")
    assert not lines["Muon"]["less without a clip"]
