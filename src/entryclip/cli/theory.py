"""The command `entryclip theory`: the four convergence theorems as a table."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ..noise.contamination import HeavyPart
    from ..theory import Guarantee

HeavyLaw = Literal["cauchy", "student-t", "laplace", "gaussian"]


def theory(
    *,
    alpha: float,
    sigma: float,
    gamma: float,
    bound: float,
    shape: str,
    law: HeavyLaw = "cauchy",
    nu: float | None = None,
    exact_bias: bool = False,
    smoothness: float = 1.0,
    gap: float = 1.0,
    epsilon: float | None = None,
    iterations: int | None = None,
    batch: int | None = None,
) -> int:
    """Print what the four convergence theorems say: thresholds, step sizes, iterations, and how loose their bounds are.

    Args:
        alpha: fraction of heavy-tailed entries in the noise; 1 for noise of the heavy law alone
        sigma: scale of the Gaussian part
        gamma: scale of the heavy part
        bound: largest absolute entry of the true gradient
        shape: of the matrix, as 768x768
        law: of the heavy part; with another than cauchy thresholds come from the exact bias
        nu: degrees of freedom, with --law student-t
        exact_bias: take thresholds from the exact bias for cauchy, too, and not from the paper's closed forms
        smoothness: L of the objective, in the Frobenius norm
        gap: f(X_0) - inf f
        epsilon: target for the mean gradient norm (default 0.1)
        iterations: how many there are, instead of a target
        batch: samples per iteration of pre-clipping, with iterations
    """
    from ..noise import Contamination
    from ..theory import guarantee

    noise, sides = Contamination(alpha, sigma, _heavy_part(law, gamma, nu)), _parse_shape(shape)
    if iterations is None and epsilon is None:
        epsilon = 0.1
    found = [
        guarantee(
            *(stage, operator, noise),
            bound=bound,
            shape=sides,
            smoothness=smoothness,
            gap=gap,
            epsilon=epsilon,
            iterations=iterations,
            batch=batch if stage == "pre" else None,
            exact_bias=exact_bias or None,
        )
        for stage in ("post", "pre")
        for operator in ("hard", "smooth")
    ]
    _show_guarantees(found)
    return 0


def _heavy_part(law: HeavyLaw, gamma: float, nu: float | None) -> "HeavyPart":
    """Return the heavy part of the noise that the options describe."""
    from ..noise import Cauchy, Gaussian, Laplace, StudentT

    if (law == "student-t") != (nu is not None):
        raise ValueError(
            f"--nu is needed with --law student-t and means nothing without it, got --law {law}, --nu {nu}"
        )
    if nu is not None:
        return StudentT(nu, gamma)
    if law == "cauchy":
        return Cauchy(gamma)
    return Laplace(gamma) if law == "laplace" else Gaussian(gamma)


def _parse_shape(text: str) -> tuple[int, int]:
    """Read a shape such as 768x768."""
    sides = text.split("x")
    if len(sides) != 2 or not all(side.isdecimal() for side in sides):
        raise ValueError(f"--shape must be rows x columns, as 768x768, got {text!r}")
    return int(sides[0]), int(sides[1])


def _show_guarantees(found: Sequence["Guarantee"]) -> None:
    """Print one column per theorem."""
    from rich.console import Console
    from rich.table import Table

    table = Table("", *(f"{each.stage}, {each.operator}" for each in found), title="The four convergence theorems")
    exact = [each.exact for each in found]
    rows: dict[str, list[str]] = {
        "threshold": [f"{each.threshold:.4g}" for each in found],
        "rho <=": [f"{each.rho:.3g}" for each in found],
        "rho, exact": [f"{each.rho:.3g}" for each in exact],
        "variance <=": [f"{each.variance:.4g}" for each in found],
        "variance, exact": [f"{each.variance:.4g}" for each in exact],
        "step size": [f"{each.step_size:.3g}" for each in found],
        "iterations": [f"{each.iterations:.4g}" for each in found],
        "batch": [f"{each.batch:.4g}" for each in found],
        "samples": [f"{each.samples:.4g}" for each in found],
        "norm": ["Frobenius" if each.stage == "post" else "nuclear" for each in found],
        "mean gradient norm <=": [f"{each.stationarity:.4g}" for each in found],
    }
    for name, cells in rows.items():
        table.add_row(name, *cells)
    console = Console()
    console.print(table)
    for remark in found[0].remarks:
        console.print(f"note: {remark}", highlight=False, markup=False, soft_wrap=True)
