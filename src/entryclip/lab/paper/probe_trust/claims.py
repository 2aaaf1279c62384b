"""Which layers the probe flags and what R-hat says of them, as claims and as a table."""

from collections.abc import Iterable, Sequence

import numpy as np

from ...engine.study import Claim, Row
from .study import ProbedLayer

CLEAN = ("gaussian", "aligned", "multiplicative", "entrywise", "low_rank")  # kinds without spikes in single entries
LABELS = {
    "gaussian": "Gaussian",
    "aligned": "aligned with G",
    "multiplicative": "another size each",
    "entrywise": "times the signal",
    "low_rank": "low rank",
    "heavy_low_rank": "heavy low rank",
    "student": "5 % $t_2$",
    "cauchy": "5 % Cauchy",
}


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Check the shares of layers that the probe flags, and R-hat where it misleads."""
    layers = ProbedLayer.from_rows(rows)
    return [*_of_flags(layers), *_of_r_hat(layers), _of_heavy_factors(layers)]


def _of_flags(layers: list[ProbedLayer]) -> list[Claim]:
    contaminated, clean = share(layers, ["cauchy"]), share(layers, CLEAN)
    worst = max(CLEAN, key=lambda kind: share(layers, [kind]))
    return [
        Claim(
            "at least 95 % of the layers with 5 % of Cauchy noise are flagged",
            f"{contaminated:.1%}",
            contaminated >= 0.95,
        ),
        Claim(
            "at most 5 % of the clean layers are flagged",
            f"{clean:.1%} ({LABELS[worst]} most: {share(layers, [worst]):.1%})",
            clean <= 0.05,
        ),
    ]


def _of_r_hat(layers: list[ProbedLayer]) -> list[Claim]:
    aligned, robust, plain = (
        median_r_hat(layers, "aligned"),
        median_r_hat(layers, "cauchy"),
        plain_r_hat(layers, "cauchy"),
    )
    first, others = aligned[0], np.median(aligned[1:])
    flagged = share(layers, ["aligned"])
    _, high = gaussian_band(layers)
    return [
        Claim(
            "R-hat far above 1 does not mean that single entries stand out: noise aligned with the first direction",
            f"median R-hat {first:.2g} for k = 1, {others:.2g} for k > 1; flagged {flagged:.0%}",
            bool(first < 0.5 and others > high and flagged <= 0.05),
        ),
        Claim(
            "spikes capture a plain mean and blind its R-hat, and not that of a median of means (5 % Cauchy, k = 1)",
            f"median R-hat {plain[0]:.3g} and {robust[0]:.3g}, Gaussian noise up to {high:.2g}",
            bool(plain[0] < high < robust[0]),
        ),
    ]


def _of_heavy_factors(layers: list[ProbedLayer]) -> Claim:
    flagged, rare = (share(layers, ["heavy_low_rank"], verdict) for verdict in ("spikes", "rare spikes"))
    return Claim(
        "low-rank noise with heavy-tailed factors is mostly not taken for entry-wise spikes",
        f"flagged {flagged:.0%}, rare spikes {rare:.0%}",
        flagged <= 0.5,
    )


def tables(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Tabulate the shares of each verdict and the medians over the layers, by kind and shape."""
    layers = ProbedLayer.from_rows(rows)
    groups = dict.fromkeys((layer.kind, layer.shape) for layer in layers)
    found = [[layer for layer in layers if (layer.kind, layer.shape) == group] for group in groups]
    return {"Verdicts, and medians over the layers": [_line(group) for group in found]}


def _line(layers: list[ProbedLayer]) -> Row:
    """One line of the table, for layers of one kind and shape."""
    kind, ratios = layers[0].kind, median_r_hat(layers, layers[0].kind)
    return {
        "noise": LABELS[kind].replace("$", ""),
        "shape": layers[0].shape,
        "layers": len(layers),
        "flagged": share(layers, [kind]),
        "rare spikes": share(layers, [kind], "rare spikes"),
        "spiked samples": float(np.median([layer.spiked for layer in layers])),
        "R-hat, k = 1": float(ratios[0]),
        "R-hat, k = 2": float(ratios[1]),
        "plain mean's, k = 1": float(plain_r_hat(layers, kind)[0]),
    }


def share(layers: Sequence[ProbedLayer], kinds: Iterable[str], verdict: str = "spikes") -> float:
    """The share of the layers of these kinds that have this verdict; "spikes" is a layer that is flagged."""
    kinds = set(kinds)
    return float(np.mean([layer.verdict == verdict for layer in layers if layer.kind in kinds]))


def median_r_hat(layers: Sequence[ProbedLayer], kind: str) -> np.ndarray:
    """The median of R-hat over the layers of a kind, along each direction that all of them have."""
    return _medians([layer.r_hat for layer in layers if layer.kind == kind])


def plain_r_hat(layers: Sequence[ProbedLayer], kind: str) -> np.ndarray:
    """As `median_r_hat`, for R-hat with the plain mean of all samples."""
    return _medians([layer.plain_r_hat for layer in layers if layer.kind == kind])


def gaussian_band(layers: Sequence[ProbedLayer]) -> tuple[float, float]:
    """The band of R-hat along the first direction under Gaussian noise, the median over all layers."""
    low, high = ([ends[0] for ends in band if ends] for band in zip(*[(e.low, e.high) for e in layers], strict=True))
    return float(np.median(low)), float(np.median(high))


def _medians(ratios: list[list[float] | None]) -> np.ndarray:
    found = [each for each in ratios if each]
    return np.median([each[: min(map(len, found))] for each in found], axis=0)
