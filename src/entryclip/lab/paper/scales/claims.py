"""Whether a clip still gains anything on gradients once the scales of rows and columns are divided out."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from scipy import stats

from ...engine.study import Claim, Row
from .controls import HEAVY
from .language_model import HIDDEN
from .study import DIGITS, ControlRow, GradientRow, Measured

BOUND = 1.1  # a gain of 10 %: as a batch larger by a tenth
_FALSE_ALARM = 1e-3  # per matrix, of an entry beyond the Gaussian bound


def claims(rows: Sequence[Row]) -> list[Claim]:
    """The controls first, which say what the measurement can see; then gradients and noise."""
    found = GradientRow.from_rows(rows)
    hidden = [row for row in found if row.layer in HIDDEN]
    tables = [row for row in found if row.corpus != DIGITS and row.layer not in HIDDEN and row.layer != "head"]
    groups = {
        "Language model, hidden matrices": hidden,
        "Language model, embeddings": tables,
        "Language model, head": [row for row in found if row.layer == "head"],
        "Convolutional network on digits": [row for row in found if row.corpus == DIGITS],
    }
    present = {name: those for name, those in groups.items() if those}
    made = [*_controls(ControlRow.from_rows(rows))]
    for name, those in present.items():
        made += [_raw(name, those), _median(name, those), _all(name, those)]
    return [*made, *_everywhere(hidden), *_anomalies(hidden)]


def _controls(rows: Sequence[ControlRow]) -> list[Claim]:
    """Heavy-tailed entries must keep a gain that the other claims would see, and Gaussian ones must not."""
    heavy = {law: [row.standardized for row in rows if row.law == law] for law in HEAVY}
    scaled = [row for row in rows if row.law == "Gaussian with scales"]
    gaussian = [row.standardized for row in rows if row.law not in HEAVY]
    words = ", ".join(f"{law} {np.median(gains):.3g} (least {min(gains):.3g})" for law, gains in heavy.items())
    return [
        Claim(
            f"Control: heavy-tailed entries keep a gain above {BOUND:g} when scales are divided out",
            f"median over matrices: {words}",
            min(min(gains) for gains in heavy.values()) > BOUND,
        ),
        Claim(
            "Control: for Gaussian entries with log-normal scales the gain falls to 1",
            f"from {np.median([row.raw for row in scaled]):.3g} to "
            f"{np.median([row.standardized for row in scaled]):.3g}, largest {max(gaussian):.3g}",
            max(gaussian) <= 1.02,
        ),
    ]


def _raw(name: str, rows: Sequence[Measured]) -> Claim:
    """As they are, pooled entries look heavy-tailed."""
    gains = [row.raw for row in rows]
    return Claim(
        f"{name}: as they are, a clip would gain more than {BOUND:g} on most",
        f"{spread(gains)}; above {BOUND:g} in {share(gain > BOUND for gain in gains)}",
        float(np.median(gains)) > BOUND,
    )


def _median(name: str, rows: Sequence[Measured]) -> Claim:
    """With scales divided out, a typical matrix has nothing to gain."""
    gains = [row.standardized for row in rows]
    means = [row.mean_standardized for row in rows]
    return Claim(
        f"{name}: with scales divided out, the median gain is at most 1.02",
        f"{spread(gains)} (with mean absolute values as scales: {spread(means)})",
        float(np.median(gains)) <= 1.02,
    )


def _all(name: str, rows: Sequence[Measured]) -> Claim:
    """With scales divided out, no matrix has anything to gain."""
    beyond = [row for row in rows if row.standardized > BOUND]
    measured = f"above it in {share(row.standardized > BOUND for row in rows)}"
    if beyond and isinstance(beyond[0], GradientRow):
        worst = max((row for row in beyond if isinstance(row, GradientRow)), key=lambda row: row.standardized)
        run = f"{worst.corpus}, width {worst.width}, {worst.optimizer}, step {worst.step}"
        measured += f"; largest {worst.standardized:.3g}: {worst.matrix}, {worst.source} ({run})"
    return Claim(
        f"{name}: with scales divided out, the gain is at most {BOUND:g} on every matrix", measured, not beyond
    )


def _everywhere(rows: Sequence[GradientRow]) -> list[Claim]:
    """The median gain in each part of the design, so that no part hides behind the others."""
    parts: dict[str, Callable[[GradientRow], object]] = {
        "step": lambda row: row.step,
        "width": lambda row: row.width,
        "optimizer": lambda row: row.optimizer,
        "corpus": lambda row: row.corpus,
        "source": lambda row: row.source,
        "kind": lambda row: row.layer,
    }
    if not rows:
        return []
    medians = {}
    for part, of in parts.items():
        for value in dict.fromkeys(map(of, rows)):
            medians[f"{part} {value}"] = float(np.median([row.standardized for row in rows if of(row) == value]))
    worst = max(medians, key=medians.__getitem__)
    return [
        Claim(
            "So it is at each stage, width, optimizer, corpus and kind of hidden matrix (median at most 1.02)",
            f"largest median {medians[worst]:.3f}, at {worst}; {len(medians)} parts",
            medians[worst] <= 1.02,
        )
    ]


def _anomalies(rows: Sequence[GradientRow]) -> list[Claim]:
    """The largest standardised entries, beside the bound that Gaussian ones pass once in 1000 matrices."""
    beyond = [row.largest > float(stats.norm.isf(_FALSE_ALARM / row.entries / 2)) for row in rows]
    if not rows:
        return []
    return [
        Claim(
            "No standardised entry of a hidden matrix is beyond what Gaussian ones reach once in 1000 matrices",
            f"beyond it in {share(beyond)}; largest entries: median {np.median([row.largest for row in rows]):.3g}, "
            f"largest {max(row.largest for row in rows):.3g}",
            float(np.mean(beyond)) <= 10 * _FALSE_ALARM,
        )
    ]


def spread(gains: Sequence[float]) -> str:
    """Write the median, the 90 % quantile and the largest of some gains.

    >>> spread([1.0, 2.0, 3.0])
    'median 2, 90 % 2.8, largest 3'
    """
    return f"median {np.median(gains):.3g}, 90 % {np.quantile(gains, 0.9):.3g}, largest {max(gains):.3g}"


def share(flags: Iterable[bool]) -> str:
    """Write how many of some flags are true.

    >>> share([True, False, True])
    '2 of 3'
    """
    found = list(flags)
    return f"{sum(found)} of {len(found)}"
