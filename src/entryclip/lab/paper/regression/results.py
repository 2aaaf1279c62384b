"""Questions to the rows of the regression study: the best setting of a method, its loss, its gain."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ...engine.study import Row
from .study import STAGES


class RegressionResults:
    """The rows of a run, and for each method the best over its grid of settings and learning rates."""

    def __init__(self, rows: Iterable[Row]):
        self.rows = list(rows)

    def where(self, **wanted: Any) -> list[Row]:
        """The rows with these values."""
        return [row for row in self.rows if all(row.get(key) == value for key, value in wanted.items())]

    def sizes(self) -> list[int]:
        """The sizes d of the paper's part, ascending."""
        return sorted({row["d"] for row in self.rows if row["part"] == "paper"})

    def levels(self, part: str = "paper") -> list[float]:
        """The values of alpha in a part, ascending."""
        return sorted({row["level"] for row in self.where(part=part, noise="contamination")})

    def stages(self) -> list[str]:
        """The stages that were run: post (gradient descent), pre (spectral gradient descent)."""
        there = {row["stage"] for row in self.rows}
        return [stage for stage in STAGES if stage in there]

    def length(self) -> str:
        """How long the runs were, and their schedule if it is not constant, in words."""
        row = self.rows[0]
        return f"{row['steps']} steps" + (", linear decay" if row["schedule"] == "linear" else "")

    def other_noises(self) -> list[tuple[str, float]]:
        """The noises that are not contamination, each with its level."""
        return sorted({(row["noise"], row["level"]) for row in self.rows if row["noise"] != "contamination"})

    def best(self, **wanted: Any) -> Row | None:
        """The row of the least median final loss; None if every run diverged or there was none."""
        finite = [row for row in self.where(kind="final", **wanted) if row["loss"] is not None]
        return min(finite, key=lambda row: row["loss"]) if finite else None

    def loss(self, **wanted: Any) -> float:
        """The least median final loss; inf where there is none."""
        row = self.best(**wanted)
        return float("inf") if row is None else row["loss"]

    def spectrum(self, method: str, **wanted: Any) -> Row:
        """The row that says what the best setting of a method makes of the first gradient."""
        (row,) = self.where(kind="spectrum", part="paper", method=method, **wanted)
        return row

    def start(self, **wanted: Any) -> float:
        """The loss before the first step."""
        return float(self.where(kind="curve", step=0, **wanted)[0]["loss"])

    def paper(self, stage: str, d: int) -> "BestLosses":
        """The losses on the paper's grid."""
        return BestLosses(self, "paper", stage, d, "contamination", tuple(self.levels()))

    def free(self, stage: str, noise: str) -> "BestLosses":
        """The losses with any threshold, at the first size."""
        levels = tuple(sorted({row["level"] for row in self.where(part="free", stage=stage, noise=noise)}))
        return BestLosses(self, "free", stage, self.sizes()[0], noise, levels)


@dataclass(frozen=True)
class BestLosses:
    """The least median final losses of every method in one part of the study, by level of the noise."""

    results: RegressionResults
    part: str  # paper: its grid of thresholds; free: any threshold
    stage: str  # post: gradient descent; pre: spectral gradient descent
    d: int
    noise: str
    levels: Sequence[float]

    def best(self, method: str, level: float) -> float:
        """The loss at the method's best setting; in the free part a threshold may be a multiple of the median."""
        rules = (method, f"{method}-median") if self.part == "free" else (method,)
        return min(self.results.loss(method=rule, **self._at(method, level)) for rule in rules)

    def is_rate_at_edge(self, method: str, level: float) -> bool:
        """Whether the best learning rate is the least or the largest that was tried: a better one may lie beyond."""
        at = self._at(method, level)
        best = self.results.best(method=method, **at)
        rates = {row["lr"] for row in self.results.where(kind="final", method=method, **at)}
        return best is not None and best["lr"] in (min(rates), max(rates))

    @property
    def start(self) -> float:
        """The loss before the first step: that of standing still."""
        return self.results.start(part="paper", stage=self.stage, d=self.d)

    def speedup(self, method: str, level: float) -> float:
        """The loss without clipping over that with the method, each at its own best setting."""
        return self.best("none", level) / self.best(method, level)

    def speedup_over_still(self, method: str, level: float) -> float:
        """The lower of the loss without clipping and that of standing still, over the loss with the method."""
        return min(self.best("none", level), self.start) / self.best(method, level)

    def share(self, method: str, level: float) -> float:
        """The final loss over that before the first step."""
        return self.best(method, level) / self.start

    def _at(self, method: str, level: float) -> dict[str, Any]:
        """The values that the rows of a method have here; GD with the posterior mean is a part of its own."""
        part = "optimum" if method == "posterior" and self.stage == "post" else self.part
        return {"part": part, "stage": self.stage, "d": self.d, "noise": self.noise, "level": level}


def markdown(rows: Iterable[Row]) -> str:
    """The paper's comparison as a table in Markdown: least median final losses, at the first size."""
    results = RegressionResults(rows)
    d, levels = results.sizes()[0], results.levels()
    lines = [f"| d = {d}, alpha | {' | '.join(f'{a:g}' for a in levels)} |", "|---" * (len(levels) + 1) + "|"]
    still = f"{results.start(part='paper', d=d):.3g}"
    lines.append(f"| standing still | {' | '.join(still for _ in levels)} |")
    for stage, name in (("post", "GD"), ("pre", "spectral GD")):
        losses = results.paper(stage, d)
        for method, words in (("none", "no clipping"), ("hard", "hard"), ("smooth", "smooth")):
            cells = " | ".join(f"{losses.best(method, alpha):.3g}" for alpha in levels)
            lines.append(f"| {name}, {words} | {cells} |")
    return "\n".join(lines)


def subspace_markdown(rows: Iterable[Row]) -> str:
    """What is left of the leading subspace of the first gradient, as a table in Markdown, with the chance level."""
    results = RegressionResults(rows)
    levels = results.levels()
    lines = [f"| alpha | chance | {' | '.join(f'{a:g}' for a in levels)} |", "|---" * (len(levels) + 2) + "|"]
    for d in results.sizes():
        for method, words in (("none", "no clipping"), ("hard", "hard"), ("smooth", "smooth")):
            found = [results.spectrum(method, stage="post", d=d, level=alpha) for alpha in levels]
            cells = " | ".join(f"{row['kept']:.2f}" for row in found)
            lines.append(f"| d = {d}, {words} | {found[0]['chance']:.3g} | {cells} |")
    return "\n".join(lines)
