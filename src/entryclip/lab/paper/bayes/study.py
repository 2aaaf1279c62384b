"""Least mean squared errors of the Bayes estimator, hard clipping and smooth shrinkage over a grid of noises."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar

from ....noise import Cauchy, Contamination, StudentT, posterior_mean
from ....noise.bayes import log_marginal
from ....noise.moments import panels
from ...engine.study import Piece, Row
from ..entrywise import OPERATORS, Operator
from ..typed_rows import TypedRow

EXAMPLE = Contamination(0.05, 1.0, Cauchy(3.0))  # the noise for which the estimators are drawn as curves


@dataclass(frozen=True)
class BayesConfig:
    """The grid of noises, in units of the signal's standard deviation sigma_x = 1."""

    alphas: tuple[float, ...] = tuple(float(a) for a in np.geomspace(1e-3, 1, 13).round(6))
    scales: tuple[float, ...] = tuple(float(s) for s in np.geomspace(0.1, 1e3, 13).round(6))  # of the heavy part
    sigmas: tuple[float, ...] = (0.3, 1.0, 3.0)  # of the Gaussian part
    nu: float = 1.0  # tail index of the heavy part

    def __post_init__(self) -> None:
        if not self.alphas or not all(0 < a <= 1 for a in self.alphas):
            raise ValueError(f"alphas must be in (0, 1], at least one, got {self.alphas}")
        if not all(0 < s < math.inf for s in (*self.scales, *self.sigmas, self.nu)):
            given = f"{self.scales}, {self.sigmas}, {self.nu}"
            raise ValueError(f"scales, sigmas and nu must be positive and finite, got {given}")

    @classmethod
    def quick(cls) -> "BayesConfig":
        """A few seconds: a coarser grid."""
        return cls(alphas=(0.001, 0.01, 0.05, 0.2, 0.5, 1.0), scales=(0.1, 1.0, 3.0, 10.0, 100.0), sigmas=(0.3, 1.0))


@dataclass(frozen=True, kw_only=True)
class EstimatorError(TypedRow):
    """An estimator at its best under one noise."""

    kind: str = "error"
    alpha: float
    scale: float
    sigma: float
    nu: float
    method: str  # "bayes" or a key of OPERATORS
    threshold: float | None  # None for "bayes"
    gain: float
    mse: float
    excess: float  # mse / the Bayes estimator's mse
    share: float  # the reduction of the error of always guessing 0, over the Bayes estimator's reduction


@dataclass(frozen=True, kw_only=True)
class CurvePoint(TypedRow):
    """An estimator's output at one observed entry y, under the noise EXAMPLE."""

    kind: str = "curve"
    method: str
    y: float
    estimate: float


class Setting(NamedTuple):
    """A threshold and a gain of an estimator, and the mean squared error they give."""

    mse: float
    gain: float
    threshold: float | None  # None for the Bayes estimator


def run_unit(config: BayesConfig, piece: Piece) -> Iterator[Row]:
    """Yield one row per noise and estimator, and one per point of the curves; `piece` is empty: one unit."""
    for sigma in config.sigmas:
        for alpha in config.alphas:
            for scale in config.scales:
                noise = Contamination(alpha, sigma, Cauchy(scale) if config.nu == 1 else StudentT(config.nu, scale))
                for error in _errors(noise, scale, config.nu):
                    yield error.to_row()
    for point in _curves(EXAMPLE, scale=3.0):
        yield point.to_row()


class Quadrature:
    """Integrals over the observation y > 0 under one noise; `scale` is that of the noise's heavy part."""

    def __init__(self, noise: Contamination, scale: float) -> None:
        reach = 1 + noise.sigma + scale
        self.start, self.end = 1e-3 * min(1.0, scale), 1e3 * reach  # where thresholds are searched
        self.y, weight = panels([], self.start, 1e14 * reach, growth=0.15)
        self.weight = 2 * weight * np.exp(log_marginal(self.y, 1.0, noise))
        self.mean = posterior_mean(self.y, 1.0, noise)

    def bayes(self) -> float:
        """The mean squared error of the Bayes estimator."""
        return 1 - float(self.weight @ self.mean**2)

    def at(self, operator: Operator, threshold: float) -> Setting:
        """The operator with the best gain at this threshold."""
        phi = operator(self.y, threshold)
        cross, square = float(self.weight @ (self.mean * phi)), float(self.weight @ phi**2)
        return Setting(1 - cross**2 / square, cross / square, threshold)

    def best(self, operator: Operator) -> Setting:
        """The operator with the best threshold and gain: a grid search, refined around its best point."""

        def error(log_threshold: float) -> float:
            return self.at(operator, math.exp(log_threshold)).mse

        grid = np.linspace(math.log(self.start), math.log(self.end), 60)
        i = int(np.argmin([error(t) for t in grid]))
        around = (grid[max(i - 1, 0)], grid[min(i + 1, len(grid) - 1)])
        found = minimize_scalar(error, bounds=around, method="bounded")
        return self.at(operator, math.exp(found.x))


def _errors(noise: Contamination, scale: float, nu: float) -> Iterator[EstimatorError]:
    """Yield the Bayes estimator's row, then one row per operator."""
    quadrature = Quadrature(noise, scale)
    bayes = quadrature.bayes()
    found = {name: quadrature.best(operator) for name, operator in OPERATORS.items()}
    for method, best in {"bayes": Setting(bayes, 1.0, None), **found}.items():
        yield EstimatorError(
            alpha=noise.alpha,
            scale=scale,
            sigma=noise.sigma,
            nu=nu,
            method=method,
            threshold=best.threshold,
            gain=best.gain,
            mse=best.mse,
            excess=best.mse / bayes,
            share=(1 - best.mse) / (1 - bayes),
        )


def _curves(noise: Contamination, scale: float) -> Iterator[CurvePoint]:
    """Yield the estimators for one noise as functions of y."""
    quadrature = Quadrature(noise, scale)
    y = np.concatenate([np.linspace(0, 12, 97), np.geomspace(12.5, 1000, 60)])
    curves = {"bayes": posterior_mean(y, 1.0, noise)}
    for method, operator in OPERATORS.items():
        best = quadrature.best(operator)
        curves[method] = best.gain * operator(y, best.threshold)
    for method, values in curves.items():
        for point, value in zip(y.tolist(), values.tolist(), strict=True):
            yield CurvePoint(method=method, y=point, estimate=value)
