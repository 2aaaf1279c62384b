"""The page's section of training runs: their loss curves, and a table that compares each with the first."""

from dataclasses import dataclass
from pathlib import Path

from ..engine.schema import BadFile
from ..engine.study import Row
from .sections import PageFigure, page_figures
from .tables import Table, make_table
from .training_runs import TrainingRun, compare, find_runs, load_run

FOLDER = "training-runs"  # for the figure
_CAPTIONS = {"loss": "Validation loss of every training run in this folder against the tokens it was trained on."}
_COMPARED = (
    "Every run, compared with the first: final validation loss, its difference, and the tokens until the first's final "
    "loss is reached"
)
_DIFFERING = "The settings in which the runs differ"


@dataclass(frozen=True)
class RunsSection:
    """The section's figure and tables."""

    figures: list[PageFigure]
    tables: list[Table]


def show_runs(results: Path) -> tuple[RunsSection | None, list[str]]:
    """The section of the runs in a folder, None without any, and a line for each run that cannot be read."""
    runs: list[TrainingRun] = []
    damaged = []
    for folder in find_runs(results):
        try:
            inside = folder.relative_to(results).as_posix()
            runs.append(load_run(folder, folder.resolve().name if inside == "." else inside))
        except (BadFile, OSError) as error:
            damaged.append(str(error))
    if not runs:
        return None, damaged
    _draw(runs, results / FOLDER)
    differing = differing_settings(runs)
    tables = [make_table(_COMPARED, comparison_rows(runs)), *([make_table(_DIFFERING, differing)] if differing else [])]
    return RunsSection(page_figures(results, results / FOLDER, _CAPTIONS), tables), damaged


def comparison_rows(runs: list[TrainingRun]) -> list[Row]:
    """One row for each run, compared with the first of them."""
    found: list[Row] = []
    for run in runs:
        against = compare(runs[0], run)
        row: Row = {"run": run.name, "method": run.settings["method"], "tokens": run.final.tokens}
        row |= {"validation loss": run.final.loss, "less the first's": against.loss if run is not runs[0] else None}
        reached = "not reached" if against.tokens is None else round(against.tokens)
        row |= {"tokens to the first's loss": reached, "tokens a second": run.tokens_per_second}
        found.append(row)
    return found


def differing_settings(runs: list[TrainingRun]) -> list[Row]:
    """One row for each setting in which a run differs from the first, with a column for each run."""
    names = dict.fromkeys(name for run in runs for name in compare(runs[0], run).settings)
    return [{"setting": name, **{run.name: _shown(run.settings.get(name)) for run in runs}} for name in names]


def _shown(value: object) -> str:
    return "default" if value is None else str(value)


def _draw(runs: list[TrainingRun], folder: Path) -> None:
    from ..engine.figures import literal, panels, save

    figure, (axis,) = panels(1, width=6.4, height=4.0)
    styles = ("solid", "dashed", "dotted", "dashdot")
    for i, run in enumerate(runs):
        axis.plot(*zip(*run.curve, strict=True), ls=styles[i % 4], marker=".", label=literal(run.name))
    axis.set(xlabel="tokens", ylabel="validation loss")
    axis.legend(frameon=False)
    save(figure, folder, "loss")
