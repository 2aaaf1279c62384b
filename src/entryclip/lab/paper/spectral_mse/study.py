"""Does the error of the entries bound the error of sigma_1, and how tightly: `prop:spectral_to_mse` and its remark.

For an entry-wise operator phi and Delta = phi(G + E) - G, the proposition says

    E |sigma_1(phi(G + E)) - sigma_1(G)|^2 <= sum_ij E (phi(G_ij + E_ij) - G_ij)^2       Eq. spectral_mse

up to a remainder that Weyl's inequality makes superfluous. The remark says when it is tight, by R-hat of Delta: far
below 1 (Delta along u v^T) it is; far above 1 (spikes, which clipping removes) it is loose, yet useful; near 1 it is
loose and of no use. Measured here for aligned noise, Gaussian noise, one spike so small that the first-order expansion
holds, and spikes so large that one takes over sigma_1; over the thresholds of hard clipping and smooth shrinkage.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ....diagnostics import localization
from ....noise import Aligned, Contamination, Gaussian, Spike, StudentT
from ....noise.laws import Noise
from ....operators import hard_clip, smooth_shrinkage
from ..planted import planted

TITLE = "From entry-wise to spectral error"
CAPTIONS = {
    "bridge": "(a) How much of the entry-wise error shows in sigma_1, against the median R-hat of Delta, one point per "
    "threshold; grey: the null band of the median. (b) Error of sigma_1 over the threshold, in units of the error "
    "without clipping; marks: the threshold with the least entry-wise error.",
}
OPERATORS = {"hard": hard_clip, "smooth": smooth_shrinkage}
REGIMES = ("aligned", "Gaussian", "small spike", "large spikes")


@dataclass(frozen=True)
class Config:
    """The signal, the noise and the thresholds."""

    side: int = 192
    draws: int = 64
    strength: float = 2.0  # of G's top direction, in units of the norm of its Gaussian part of unit entries
    size: float = 0.2  # ||E|| in units of the gap of G, but for the large spikes
    thresholds: tuple[float, ...] = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0, 128.0)

    def __post_init__(self) -> None:
        if self.side < 16 or self.draws < 5 or not (1 < self.strength < math.inf and 0 < self.size < math.inf):
            given = f"{self.side}, {self.draws}, {self.strength}, {self.size}"
            raise ValueError(f"side must be >= 16, draws >= 5, strength above 1, size positive, got {given}")
        if not self.thresholds or not all(0 < t < math.inf for t in self.thresholds):
            raise ValueError(f"thresholds must be positive and finite, at least one, got {self.thresholds}")

    @classmethod
    def quick(cls) -> "Config":
        return cls(side=64, draws=24, thresholds=(1.0, 2.0, 4.0, 8.0, 16.0, 64.0))


def run(config: Config) -> Iterator[dict[str, Any]]:
    """One row per kind of noise, operator and threshold; the same draws for all thresholds."""
    generator = torch.Generator().manual_seed(0)
    G = planted(config.side, config.strength, generator).double()
    band = None
    for regime in REGIMES:
        E = noise(regime, G, config, generator)
        band = band or localization(E, G).band()[0].tolist()  # depends on G and the number of draws alone
        yield _row(regime, "none", None, G, G + E, band)
        for name, operator in OPERATORS.items():
            for threshold in config.thresholds:
                yield _row(regime, name, threshold, G, operator(G + E, threshold), band)


def noise(regime: str, G: Tensor, config: Config, generator: torch.Generator) -> Tensor:
    """Draws of the noise, (draws, m, n)."""
    shape, (first, second) = (config.draws, *G.shape), torch.linalg.svdvals(G)[:2].tolist()
    size = config.size * (first - second)
    bulk = size / (2 * math.sqrt(G.shape[0]))  # the scale of Gaussian entries with that spectral norm
    if regime == "aligned":
        amplitude = torch.randn(config.draws, 1, 1, generator=generator, dtype=torch.float64)
        return amplitude * Aligned(G, size).sample(shape, generator, dtype=torch.float64)
    laws: dict[str, Noise] = {
        "Gaussian": Gaussian(bulk),
        "small spike": Spike(size),
        "large spikes": Contamination(0.001, bulk, StudentT(3.0, first / 2)),
    }
    return laws[regime].sample(shape, generator, dtype=torch.float64)


def _row(
    regime: str, name: str, threshold: float | None, G: Tensor, estimate: Tensor, band: list[float]
) -> dict[str, Any]:
    delta = estimate - G
    spectral = (torch.linalg.matrix_norm(estimate, 2) - torch.linalg.matrix_norm(G, 2)).square()
    entrywise = delta.square().sum((-2, -1))
    return {
        "regime": regime,
        "operator": name,
        "threshold": threshold,
        "spectral": float(spectral.mean()),  # the left-hand side
        "entrywise": float(entrywise.mean()),  # the right-hand side
        "tightest": float((spectral / entrywise).max()),  # of a single draw
        "normalized": float(localization(delta, G).median[0]),
        "band_low": band[0],
        "band_high": band[1],
    }


def plot(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The ratio of the two sides against R-hat, and what clipping does to sigma_1."""
    from ...engine.figures import panels

    rows = list(rows)
    figure, (bridge, effect) = panels(2, width=5.2, height=3.9)
    colours = {"aligned": "#1f5fa8", "Gaussian": "#555555", "small spike": "#d98c2b", "large spikes": "#c8352b"}
    bridge.axvspan(rows[0]["band_low"], rows[0]["band_high"], color="#999999", alpha=0.3, lw=0)
    bridge.axhline(1, color="#222222", lw=0.8, ls=":")
    for regime, colour in colours.items():
        for name, marker, style in (("none", "*", ""), ("hard", "s", "--"), ("smooth", "o", "-")):
            mine = _select(rows, regime, name)
            x, y = [row["normalized"] for row in mine], [row["spectral"] / row["entrywise"] for row in mine]
            size = 120 if name == "none" else 22
            bridge.scatter(x, y, s=size, marker=marker, color=colour, alpha=0.75, lw=0)
            if name != "none":
                _draw_effect(effect, rows, regime, name, (colour, marker, style))
    for name, marker in (("without clipping", "*"), ("hard", "s"), ("smooth", "o")):
        bridge.scatter([], [], s=40, marker=marker, color="#222222", lw=0, label=name)
    bridge.legend(frameon=False, loc="lower left")
    bridge.set(xscale="log", yscale="log", xlabel=r"median $\hat R(\Delta)$", title="(a) tightness of the bound")
    bridge.set_ylim(min(row["spectral"] / row["entrywise"] for row in rows) / 50, 3)  # room for the legend
    bridge.set_ylabel(r"$\mathbb{E}\,|\Delta\sigma_1|^2\; /\; \mathbb{E}\,\|\Delta\|_F^2$")
    effect.axhline(1, color="#222222", lw=0.8, ls=":")
    effect.set(xscale="log", yscale="log", xlabel="threshold (entries of G: about 1)", title="(b) error of $\\sigma_1$")
    effect.set_ylabel("error with clipping / without")
    effect.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    return {"bridge": figure}


def _draw_effect(axis: Any, rows: list[dict[str, Any]], regime: str, name: str, look: tuple[str, str, str]) -> None:
    colour, marker, style = look
    (plain,), mine, best = _select(rows, regime, "none"), _select(rows, regime, name), least(rows, regime, name)
    x, y = [row["threshold"] for row in mine], [row["spectral"] / plain["spectral"] for row in mine]
    axis.plot(x, y, color=colour, ls=style, lw=1.6, label=f"{regime}, {name}")
    axis.plot(best["threshold"], best["spectral"] / plain["spectral"], marker=marker, color=colour, ms=7)


def least(rows: list[dict[str, Any]], regime: str, name: str, error: str = "entrywise") -> dict[str, Any]:
    """The row of the threshold with the least error."""
    return min(_select(rows, regime, name), key=lambda row: float(row[error]))


def claims(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The proposition and the three sentences of the remark."""
    rows = list(rows)
    plain = {regime: _select(rows, regime, "none")[0] for regime in REGIMES}
    tight = {regime: row["spectral"] / row["entrywise"] for regime, row in plain.items()}
    gain = {
        regime: {name: least(rows, regime, name)["spectral"] / plain[regime]["spectral"] for name in OPERATORS}
        for regime in REGIMES
    }
    worst = max(row["tightest"] for row in rows)
    return [
        {
            "claim": "the squared error of sigma_1 is below the sum of the entry-wise ones in every draw, no remainder",
            "measured": f"largest ratio {worst:.4f} over all noise, operators and thresholds",
            "holds": bool(worst <= 1 + 1e-9),
        },
        {
            "claim": "the bound is saturated for R-hat far below 1",
            "measured": f"aligned noise: R-hat {plain['aligned']['normalized']:.2g}, ratio {tight['aligned']:.3f}",
            "holds": bool(plain["aligned"]["normalized"] < plain["aligned"]["band_low"] and tight["aligned"] > 0.5),
        },
        {
            "claim": "it is loose for R-hat near 1 and for a spike too small to take over sigma_1",
            "measured": _tightness(plain, tight, ("Gaussian", "small spike")),
            "holds": bool(max(tight["Gaussian"], tight["small spike"]) < 0.01),
        },
        {
            "claim": "it is loose for large spikes, too",
            "measured": _tightness(plain, tight, ("large spikes",)),
            "holds": bool(tight["large spikes"] < 0.01),
        },
        {
            "claim": "against large spikes the threshold of least entry-wise error removes most error of sigma_1",
            "measured": _gains(gain["large spikes"]),
            "holds": bool(max(gain["large spikes"].values()) < 0.2),
        },
        {
            "claim": "against delocalized noise it does not",
            "measured": _gains(gain["Gaussian"]),
            "holds": bool(min(gain["Gaussian"].values()) > 0.5),
        },
        {
            "claim": "against aligned noise least entry-wise error is near least error of sigma_1, as the remark says",
            "measured": ", ".join(
                f"{name}: {_regret(rows, 'aligned', name):.2f} times the least" for name in OPERATORS
            ),
            "holds": bool(max(_regret(rows, "aligned", name) for name in OPERATORS) < 1.5),
        },
    ]


def _tightness(plain: dict[str, dict[str, Any]], tight: dict[str, float], regimes: Iterable[str]) -> str:
    return ", ".join(f"{name}: R-hat {plain[name]['normalized']:.2g}, ratio {tight[name]:.1e}" for name in regimes)


def _gains(gain: dict[str, float]) -> str:
    return ", ".join(f"{name}: {value:.2g} of the error without" for name, value in gain.items())


def _regret(rows: list[dict[str, Any]], regime: str, name: str) -> float:
    """Error of sigma_1 at the threshold of least entry-wise error, over the least there is."""
    return float(least(rows, regime, name)["spectral"] / least(rows, regime, name, "spectral")["spectral"])


def _select(rows: list[dict[str, Any]], regime: str, name: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["regime"] == regime and row["operator"] == name]
