"""How often `tail_index` is right: known laws and their 5 % mixtures, at the size of a weight matrix.

A mixture has 5 % of a law in a standard Gaussian bulk, at the same scale or 3 times as wide. At the same scale the tail
of the law begins only where few entries are left: the hardest case.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....diagnostics import tail_index
from ....noise import Cauchy, StudentT

TITLE = "Tail index"
CAPTIONS = {
    "tails": "(a) Hill plots of one draw of each law: the index from the largest k entries; the mark is the headline, "
    "with its interval. A power law's plot settles at its index, the others keep rising to the left. (b) Verdicts over "
    "all draws; x 1 and x 3: 5 % of the law at this scale in a standard Gaussian bulk.",
}
INDEX = {"Gaussian": None, "Laplace": None, "t_4": 4.0, "t_2": 2.0, "Cauchy": 1.0}  # None: not a power law
CASES = [(law, share, scale) for law in INDEX for share, scale in ((1.0, 1.0), (0.05, 1.0), (0.05, 3.0))]
CASES.remove(("Gaussian", 0.05, 1.0))  # the Gaussian itself


@dataclass(frozen=True)
class Config:
    """How much is drawn."""

    side: int = 768
    draws: int = 40

    def __post_init__(self) -> None:
        if self.side < 256 or self.draws < 1:
            raise ValueError(f"side must be >= 256 and draws >= 1, got {self.side} and {self.draws}")

    @classmethod
    def quick(cls) -> "Config":
        return cls(draws=3)


def run(config: Config) -> Iterator[dict[str, Any]]:
    """One row per case and draw, with the Hill plot of the first draw of each pure law."""
    generator = torch.Generator().manual_seed(0)
    for law, share, scale in CASES:
        for draw in range(config.draws):
            found = tail_index(sample(law, share, scale, config.side, generator))
            first = draw == 0 and share == 1
            yield {
                "law": law,
                "share": share,
                "scale": scale,
                "verdict": found.verdict,
                "index": found.index,
                "low": found.interval[0],
                "high": found.interval[1],
                "k": found.k,
                "plot_k": found.plot.k.tolist() if first else None,
                "plot_index": (1 / found.plot.hill).tolist() if first else None,
            }


def sample(law: str, share: float, scale: float, side: int, generator: torch.Generator) -> Tensor:
    """A matrix with independent entries: this share of the law, the others standard Gaussian."""
    x = torch.randn(side, side, generator=generator)
    hit = torch.rand(side, side, generator=generator) < share
    x[hit] = scale * _draw(law, int(hit.sum()), generator)
    return x


def _draw(law: str, count: int, generator: torch.Generator) -> Tensor:
    if law == "Gaussian":
        return torch.randn(count, generator=generator)
    if law == "Laplace":
        size = torch.empty(count, dtype=torch.float64).exponential_(generator=generator)
        return (size * (2 * torch.randint(2, (count,), generator=generator) - 1)).float()
    heavy = {"t_4": StudentT(4.0), "t_2": StudentT(2.0), "Cauchy": Cauchy(1.0)}
    return heavy[law].sample((count,), generator)


def right(rows: list[dict[str, Any]], case: tuple[str, float, float]) -> dict[str, float]:
    """Shares of the draws of a case: judged right, wrong, and with the true index inside the interval."""
    mine = [row for row in rows if (row["law"], row["share"], row["scale"]) == case]
    truth = INDEX[case[0]]
    good, bad = ("not a power law", "power law") if truth is None else ("power law", "not a power law")
    return {
        "right": float(np.mean([row["verdict"] == good for row in mine])),
        "wrong": float(np.mean([row["verdict"] == bad for row in mine])),
        "covered": float(np.mean([truth is None or row["low"] <= truth <= row["high"] for row in mine])),
    }


def claims(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Right on the laws, on their mixtures, and the intervals cover."""
    rows = list(rows)
    found = {case: right(rows, case) for case in CASES}
    kinds = {
        "on the laws themselves": [case for case in CASES if case[1] == 1],
        "on their 5 % mixtures at scale 3": [case for case in CASES if case[2] == 3],
        "on their 5 % mixtures at scale 1": [case for case in CASES if case[1:] == (0.05, 1.0)],
    }
    return [
        {
            "claim": f"the verdict is right {words}, in nine of ten draws of each",
            "measured": ", ".join(_shares(case, found[case]) for case in cases),
            "holds": bool(min(found[case]["right"] for case in cases) >= 0.9),
        }
        for words, cases in kinds.items()
    ] + [
        {
            "claim": "the interval covers the true index in nine of ten draws of each",
            "measured": ", ".join(f"{_name(case)} {found[case]['covered']:.0%}" for case in CASES if INDEX[case[0]]),
            "holds": bool(min(found[case]["covered"] for case in CASES) >= 0.9),
        },
    ]


def _shares(case: tuple[str, float, float], found: dict[str, float]) -> str:
    return f"{case[0]} {found['right']:.0%}" + (f" (wrong {found['wrong']:.0%})" if found["wrong"] else "")


def _name(case: tuple[str, float, float]) -> str:
    law, share, scale = case
    return law if share == 1 else f"{law}, 5 % x {scale:.0f}"


def plot(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Hill plots, and the verdicts as bars."""
    from ...engine.figures import panels

    rows = list(rows)
    figure, (hill, bars) = panels(2, width=5.2, height=4.0)
    colours = dict(zip(INDEX, ("#555555", "#8a6d1c", "#2f8f5b", "#1f5fa8", "#c8352b"), strict=True))
    for row in (row for row in rows if row["plot_k"]):
        colour = colours[row["law"]]
        hill.plot(
            row["plot_k"],
            row["plot_index"],
            color=colour,
            lw=1.8,
            label=row["law"].replace("t_4", "$t_4$").replace("t_2", "$t_2$"),
        )
        ends = [[row["index"] - row["low"]], [row["high"] - row["index"]]]
        hill.errorbar(row["k"], row["index"], ends, color=colour, marker="o", ms=6, capsize=3)
    for truth in (1, 2, 4):
        hill.axhline(truth, color="#222222", lw=0.8, ls=":")
    hill.set(xscale="log", yscale="log", ylim=(0.7, 40), xlabel="k largest entries", title="(a) Hill plots")
    hill.set_yticks([1, 2, 4, 8, 16, 32], ["1", "2", "4", "8", "16", "32"])
    hill.minorticks_off()
    hill.set_ylabel("index")
    hill.legend(frameon=False, ncols=2, loc="upper right")
    _draw_verdicts(bars, rows)
    return {"tails": figure}


def _draw_verdicts(axis: Any, rows: list[dict[str, Any]]) -> None:
    found = [right(rows, case) for case in CASES]
    good, bad = np.array([each["right"] for each in found]), np.array([each["wrong"] for each in found])
    place = np.arange(len(CASES))
    axis.barh(place, good, color="#2f8f5b", label="right")
    axis.barh(place, 1 - good - bad, left=good, color="#cccccc", label="undecided")
    axis.barh(place, bad, left=1 - bad, color="#c8352b", label="wrong")
    axis.set_yticks(place, [_name(case).replace("t_4", "$t_4$").replace("t_2", "$t_2$") for case in CASES])
    axis.invert_yaxis()
    axis.set(xlim=(0, 1), xlabel="share of the draws", title="(b) verdicts")
    axis.grid(visible=False)
    axis.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
