"""How often is the probe right: layers with known noise, contaminated and clean, at 64 samples.

And what R-hat makes of them, by medians of means and two halves, and by the paper's plain mean of all samples.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....diagnostics import probe
from ..synthetic_layers import KINDS, Known, loss

TITLE = "How often the probe is right"
CAPTIONS = {
    "probe_trust": "(a) The share of layers for which the probe advises clipping, and (grey) those with rare spikes, "
    "of which it is not sure. (b) The share of samples in which one entry carries more than half of sigma_1: median "
    "and range over the layers. (c) R-hat along the k-th direction of the gradient, the median over the layers; the "
    "band is Gaussian noise's. Noise aligned with the first direction is far below 1 there and far above 1 along all "
    "others, with no entry that stands out. Dashed: with a plain mean, which spikes capture; its R-hat is 1.",
}
NAMES = {
    "gaussian": "Gaussian",
    "aligned": "aligned with G",
    "multiplicative": "another size each",
    "entrywise": "times the signal",
    "low_rank": "low rank",
    "heavy_low_rank": "heavy low rank",
    "student": "5 % $t_2$",
    "cauchy": "5 % Cauchy",
}
CLEAN = ("gaussian", "aligned", "multiplicative", "entrywise", "low_rank")


@dataclass(frozen=True)
class Config:
    """How many layers of each kind and shape."""

    shapes: tuple[tuple[int, int], ...] = ((32, 24), (64, 96), (160, 128))
    layers: int = 20
    samples: int = 64
    directions: int = 8

    def __post_init__(self) -> None:
        if self.layers < 1 or not self.shapes or min(min(shape) for shape in self.shapes) < 8:
            raise ValueError(f"layers must be >= 1 and shapes at least 8 x 8, got {self.layers} and {self.shapes}")

    @classmethod
    def quick(cls) -> "Config":
        return cls(shapes=((32, 24),), layers=2, directions=3)


def units(config: Config) -> list[dict[str, Any]]:
    """A model for each kind and shape."""
    return [{"kind": kind, "shape": list(shape)} for kind in KINDS for shape in config.shapes]


def run_unit(config: Config, unit: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One row per layer."""
    kind, shape = unit["kind"], (int(unit["shape"][0]), int(unit["shape"][1]))
    seed = 1000 * (1 + list(KINDS).index(kind)) + 100_000 * shape[0]
    model = Known({str(i): (KINDS[kind], shape) for i in range(config.layers)}, seed)
    report = probe(model, loss, range(config.samples), directions=config.directions, samples=config.samples)
    keys = ("matrix", "verdict", "sure", "spiked", "clip", "gain", "spearman", "tail", "index", "r_hat", "plain_r_hat")
    for row in report.rows():
        found = {"kind": kind, "shape": f"{shape[0]} x {shape[1]}", **{key: row[key] for key in (*keys, "low", "high")}}
        yield found


def share(rows: Iterable[dict[str, Any]], kinds: Iterable[str], verdict: str = "spikes") -> float:
    """Of the layers of these kinds, those with this verdict."""
    kinds = set(kinds)
    return float(np.mean([row["verdict"] == verdict for row in rows if row["kind"] in kinds]))


def median_ratio(rows: Iterable[dict[str, Any]], kind: str, key: str = "r_hat") -> np.ndarray:
    """Over the layers of a kind, along each direction that all of them have."""
    found = [row[key] for row in rows if row["kind"] == kind and row[key]]
    return np.median([each[: min(map(len, found))] for each in found], axis=0)


def claims(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Which layers are named, and what R-hat says of them."""
    rows = list(rows)
    contaminated, clean = share(rows, ["cauchy"]), share(rows, CLEAN)
    worst = max(CLEAN, key=lambda kind: share(rows, [kind]))
    aligned, plain, ours = (
        median_ratio(rows, *which) for which in (("aligned",), ("cauchy", "plain_r_hat"), ("cauchy", "r_hat"))
    )
    high = float(np.median([row["high"][0] for row in rows if row["high"]]))
    heavy = share(rows, ["heavy_low_rank"])
    return [
        _claim(
            "at least 95 % of the layers with 5 % of Cauchy noise are flagged",
            f"{contaminated:.1%}",
            contaminated >= 0.95,
        ),
        _claim(
            "at most 5 % of the clean layers are flagged",
            f"{clean:.1%} ({NAMES[worst]} most: {share(rows, [worst]):.1%})",
            clean <= 0.05,
        ),
        _claim(
            "R-hat far above 1 does not mean that single entries stand out: noise aligned with the first direction",
            f"median R-hat {aligned[0]:.2g} for k = 1, {np.median(aligned[1:]):.2g} for k > 1; "
            f"flagged {share(rows, ['aligned']):.0%}",
            bool(aligned[0] < 0.5 and np.median(aligned[1:]) > high and share(rows, ["aligned"]) <= 0.05),
        ),
        _claim(
            "spikes capture a plain mean and blind its R-hat, and not that of a median of means (5 % Cauchy, k = 1)",
            f"median R-hat {plain[0]:.3g} and {ours[0]:.3g}, Gaussian noise up to {high:.2g}",
            bool(plain[0] < high < ours[0]),
        ),
        _claim(
            "low-rank noise with heavy-tailed factors is mostly not taken for entry-wise spikes",
            f"flagged {heavy:.0%}, rare spikes {share(rows, ['heavy_low_rank'], 'rare spikes'):.0%}",
            heavy <= 0.5,
        ),
    ]


def _claim(claim: str, measured: str, holds: bool) -> dict[str, Any]:
    return {"claim": claim, "measured": measured, "holds": bool(holds)}


def tables(rows: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Shares of each verdict by kind and shape."""
    rows = list(rows)
    found = []
    for kind, shape in dict.fromkeys((row["kind"], row["shape"]) for row in rows):
        mine = [row for row in rows if (row["kind"], row["shape"]) == (kind, shape)]
        found.append(
            {
                "noise": NAMES[kind].replace("$", ""),
                "shape": shape,
                "layers": len(mine),
                "flagged": share(mine, [kind]),
                "rare spikes": share(mine, [kind], "rare spikes"),
                "spiked samples": float(np.median([row["spiked"] for row in mine])),
                "R-hat, k = 1": float(median_ratio(mine, kind)[0]),
                "R-hat, k = 2": float(median_ratio(mine, kind)[1]),
                "plain mean's, k = 1": float(median_ratio(mine, kind, "plain_r_hat")[0]),
            }
        )
    return {"Verdicts, and medians over the layers": found}


def plot(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Bars, ranges and R-hat over k."""
    from ...engine.figures import panels

    rows = list(rows)
    figure, (bars, ranges, ratios) = panels(3, width=4.0, height=3.6)
    place = range(len(KINDS))
    flagged = np.array([share(rows, [kind]) for kind in KINDS])
    rare = np.array([share(rows, [kind], "rare spikes") for kind in KINDS])
    bars.barh(place, flagged, color="#c8352b")
    bars.barh(place, rare, left=flagged, color="#cccccc")
    bars.set(xlim=(0, 1), xlabel="share of the layers", title="(a) flagged")
    bars.set_yticks(list(place), [NAMES[kind] for kind in KINDS])
    for y, kind in zip(place, KINDS, strict=True):
        shares = [row["spiked"] for row in rows if row["kind"] == kind]
        ranges.plot([min(shares), max(shares)], [y, y], color="#1f5fa8", lw=2)
        ranges.plot(np.median(shares), y, "o", color="#1f5fa8")
    ranges.set(xlim=(-0.03, 1.03), xlabel="share of the samples", title="(b) spiked")
    ranges.set_yticks(list(place), [""] * len(KINDS))
    for axis in (bars, ranges):
        axis.set_ylim(len(KINDS) - 0.5, -0.5)
        axis.grid(axis="y", visible=False)
    _draw_ratios(ratios, rows)
    return {"probe_trust": figure}


def _draw_ratios(axis: Any, rows: list[dict[str, Any]]) -> None:
    shown = {"gaussian": "#555555", "aligned": "#1f5fa8", "heavy_low_rank": "#8a6d1c", "cauchy": "#c8352b"}
    low, high = (np.median([row[end][0] for row in rows if row[end]]) for end in ("low", "high"))
    axis.axhspan(low, high, color="#dddddd", lw=0)
    for kind, colour in shown.items():
        ours, plain = median_ratio(rows, kind), median_ratio(rows, kind, "plain_r_hat")
        axis.plot(range(1, len(ours) + 1), ours, "o-", ms=4, color=colour, label=NAMES[kind])
        if kind == "cauchy":
            axis.plot(range(1, len(plain) + 1), plain, "--", color=colour, label="plain mean's")
    axis.set(yscale="log", xlabel="k", ylabel="R-hat", title="(c) R-hat")
    axis.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
