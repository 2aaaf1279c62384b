"""The localization ratio (def:localization), with its null: does one entry of the noise drive a singular value?

    r     = <u v^T, E>^2 / ||E||_F^2               Eq. localization_metric; u, v the k-th singular directions of G
    r_max = max_ij (u_i E_ij v_j)^2 / ||E||_F^2
    R     = r_max / r
    R-hat = R / median of R under Gaussian noise   Eq. normalized_localization

R-hat far above 1: single entries stand out. Far below 1: E is aligned with u v^T. Near 1: like Gaussian noise. But for
k > 1, noise aligned with *another* direction of G has a projection that cancels and large terms that do not, and so
R-hat far above 1 with no entry that stands out.

The Gaussian noise of the null has rows and columns of different scale, as the noise of gradients does: for Gaussian Z
and scales s, t the ratio is that of Z along reweighted directions, exactly,

    R(s o Z o t; u, v) = R(Z; u o s / |u o s|, v o t / |v o t|)

By default s and t are estimated from E. With `scales=None` all entries of the null have the same variance, as in the
paper; then rows and columns that differ in scale pass for single entries that stand out.

Even for Gaussian noise R is violently heavy-tailed, as r can come
close to 0 (P(R-hat > 10) is 17 %, the mean is infinite), and it may exceed 1, as terms cancel. So look at the median
over several E and its null band, never at one number or a mean.

Take G from other samples than E, by a robust mean: a spike that is also in G captures u and v and blinds the test.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..arrays import Array, double, is_array, to_numpy
from .directions import finite_matrices, singular_directions
from .null import Null, gaussian_null, participation
from .pooled_scales import Pair, ScaleChoice, pooled_scales, positive_log
from .scales import Scales
from .variance_components import UNEVEN


@dataclass(frozen=True)
class Localization:
    """Localization ratios of each matrix E along each direction, of shape (..., len(k)), or (...) for a single k.

    `print` it for the median R-hat beside its Gaussian band, one line per k.
    """

    k: int | tuple[int, ...]
    r: np.ndarray
    r_max: np.ndarray
    ratio: np.ndarray  # R
    normalized: np.ndarray  # R-hat
    p_spike: np.ndarray  # P(Gaussian noise gives this R or more)
    p_aligned: np.ndarray  # P(Gaussian noise gives this R or less)
    participation: np.ndarray  # (count, 2): the number of entries u and v are spread over; near 1: one row or column
    nulls: tuple[Null, ...] = field(repr=False)  # the law of R for Gaussian noise, one per k
    scales: Pair | None = field(default=None, repr=False)  # of the null's rows, (m,), and columns, (n,); None: equal

    def squeeze(self) -> "Localization":
        """Return the same for a single k, with arrays without their last dimension."""
        (k,) = self.k if isinstance(self.k, tuple) else (self.k,)
        names = ("r", "r_max", "ratio", "normalized", "p_spike", "p_aligned")
        return replace(self, k=k, **{name: getattr(self, name)[..., 0] for name in names})

    @property
    def draws(self) -> int:
        """The number of matrices E."""
        return self.ratio.size // len(self.nulls)

    @property
    def median(self) -> np.ndarray:
        """The median of R-hat over all E, one per k."""
        return np.median(self.normalized.reshape(self.draws, -1), axis=0)

    def band(self, level: float = 0.95) -> np.ndarray:
        """Return the interval in which the median lies with this probability if the noise is Gaussian, (count, 2)."""
        return np.array([null.band(self.draws, level) for null in self.nulls])

    def p_median(self) -> np.ndarray:
        """Return the two-sided p-value of the median against Gaussian noise, one per k."""
        below = [
            null.median_below(m * null.median, self.draws) for m, null in zip(self.median, self.nulls, strict=True)
        ]
        return 2 * np.minimum(below, 1 - np.array(below))

    @property
    def uneven(self) -> bool:
        """Whether the null's rows and columns differ in scale: by a factor of 1.28 or more, as a rule."""
        return self.scales is not None and math.hypot(*(positive_log(side).std() for side in self.scales)) > UNEVEN

    def __str__(self) -> str:
        ks = self.k if isinstance(self.k, tuple) else (self.k,)
        like = "like Gaussian noise" + (" with rows and columns of different scale" if self.uneven else "")
        return "\n".join(_line(*row, self.draws, like) for row in zip(ks, self.median, self.band(), strict=True))


def localization(
    E: Array,
    G: Array,
    k: int | Sequence[int] = 1,
    *,
    scales: ScaleChoice | Scales = pooled_scales,
    generator: np.random.Generator | None = None,
) -> Localization:
    """Compute the localization ratio of each matrix of `E`, (..., m, n), along the k-th directions of `G`, (m, n).

    The null is the law of R for Gaussian noise and these very directions (see null.py).

    scales      of the null's rows, (m,), and columns, (n,), or `diagnostics.scales` of one matrix; None for equal ones,
                as in the paper; or a function of E that finds them (default: pooled over all matrices of E)
    generator   for the null's Monte Carlo draws, which are needed where few entries carry all the weight (default: the
                same draws in every call)

    >>> rng = np.random.default_rng(0)
    >>> u, v = np.ones((2, 200)) / 200**0.5
    >>> G = np.outer(u, v) + 0.01 * rng.standard_normal((200, 200))
    >>> E = rng.standard_normal((31, 200, 200))
    >>> print(localization(E, G))
    k = 1: median R-hat 1.93 of 31 draws, Gaussian band [0.48, 2.5]: like Gaussian noise
    >>> E[:, 5, 7] = 500
    >>> print(localization(E, G))
    k = 1: median R-hat 597 of 31 draws, Gaussian band [0.48, 2.5]: single entries stand out
    >>> localization(E, G, k=(1, 2)).normalized.shape
    (31, 2)
    """
    one = isinstance(k, int | np.integer)
    if not one and (isinstance(k, str) or not np.iterable(k)):
        raise TypeError(f"k must be a whole number >= 1 or several of them, got {k!r}")
    ks: list[int] = [k] if one else list(k)  # type: ignore[list-item, arg-type]
    u, _, v, _ = singular_directions(G, ks)
    found = [_project(e, u, v) for e in finite_matrices(E, "E", G.shape)]
    r, r_max = np.array(found).transpose(1, 0, 2).reshape(2, *E.shape[:-2], len(ks))
    pair = _checked(scales(E) if callable(scales) else scales, G.shape)
    ratios = from_projections(ks, r, r_max, u, v, scales=pair, generator=generator)
    return ratios.squeeze() if one else ratios


def from_projections(
    ks: Sequence[int],
    r: np.ndarray,
    r_max: np.ndarray,
    u: np.ndarray,
    v: np.ndarray,
    *,
    scales: Pair | None = None,
    generator: np.random.Generator | None = None,
    draws: int | None = None,
) -> Localization:
    """Return a `Localization` from r and r_max, (..., len(ks)), along the directions u, (m, len(ks)), and v.

    `scales` are those of the null's rows and columns; `generator` and `draws` as for `gaussian_null`.

    >>> ones = np.ones((50, 1)) / 50**0.5
    >>> print(from_projections([1], np.array([[4e-3]]), np.array([[4e-5]]), ones, ones))
    k = 1: R-hat 0.844 of one draw, Gaussian band [0.088, 4.6e+02]: like Gaussian noise
    """
    weights = (u, v) if scales is None else (_reweighted(u, scales[0]), _reweighted(v, scales[1]))
    nulls = tuple([gaussian_null(a, b, generator, draws=draws) for a, b in zip(*(x.T for x in weights), strict=True)])
    with np.errstate(divide="ignore"):
        ratio = r_max / r  # r = 0: the terms cancel to nothing, and R is infinite
    normalized, p_spike, p_aligned = np.empty((3, *ratio.shape))
    for i, null in enumerate(nulls):
        normalized[..., i] = ratio[..., i] / null.median
        p_spike[..., i], p_aligned[..., i] = null.above(ratio[..., i]), null.below(ratio[..., i])
    spread = np.array([[participation(a), participation(b)] for a, b in zip(u.T, v.T, strict=True)])
    return Localization(tuple(ks), r, r_max, ratio, normalized, p_spike, p_aligned, spread, nulls, scales)


def _reweighted(u: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return the unit vectors u o s / |u o s| of each column of `u`, (m, count); `u` itself where that is zero."""
    weighted = u * scale[:, None]
    norm = np.linalg.norm(weighted, axis=0)
    return np.where(norm > 0, weighted / np.where(norm > 0, norm, 1), u)


def _checked(scales: Pair | Scales | None, shape: tuple[int, ...]) -> Pair | None:
    """Return given scales in fp64 on the host; raise an error unless they are finite, >= 0 and of the right lengths."""
    if scales is None:
        return None
    rows, columns = (
        np.asarray(side, float) if isinstance(side, list | tuple) else to_numpy(double(side))
        for side in _two_sides(scales, shape)
    )
    if rows.shape != shape[:1] or columns.shape != shape[1:]:
        wanted = f"({shape[0]},) and ({shape[1]},)"
        raise ValueError(f"scales must be those of rows and of columns, {wanted}, got {rows.shape} and {columns.shape}")
    for side in (rows, columns):
        if not np.isfinite(side).all() or (side < 0).any() or not side.any():
            raise ValueError(f"scales must be finite, not negative and not all 0, got {side.min()} to {side.max()}")
    return rows, columns


def _two_sides(scales: Any, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """Return the rows' and the columns' scales of a pair, or of what `diagnostics.scales` found in one matrix."""
    if isinstance(scales, Scales):
        return scales.rows, scales.columns
    sides = list(scales) if np.iterable(scales) and not isinstance(scales, str) else []
    if len(sides) != 2 or not all(isinstance(side, list | tuple) or is_array(side) for side in sides):
        wanted = f"a pair of the scales of {shape[0]} rows and of {shape[1]} columns, diagnostics.scales(E), or None"
        raise TypeError(f"scales must be {wanted}, got {scales!r:.80}")
    return sides[0], sides[1]


def _project(e: np.ndarray, u: np.ndarray, v: np.ndarray) -> tuple[list[float], list[float]]:
    """Return r and r_max of one matrix along each direction."""
    top = np.abs(e).max()
    if top == 0:
        raise ValueError("E is zero (one of its matrices, if there are several): it has no direction")
    unit = e / top
    square = np.vdot(unit, unit)
    terms = [a[:, None] * unit * b for a, b in zip(u.T, v.T, strict=True)]
    r_max = [float(np.abs(each).max() ** 2 / square) for each in terms]
    if 0 in r_max:
        raise ValueError("E is zero wherever the directions of G are not: R would be 0/0")
    return [float(each.sum() ** 2 / square) for each in terms], r_max


def _line(k: int, median: float, band: np.ndarray, draws: int, like: str) -> str:
    low, high = band
    spikes = "single entries stand out" + (", or E is aligned with another direction of G" if k > 1 else "")
    words = spikes if median > high else like
    words = "aligned with G" if median < low else words
    of = f"median R-hat {median:.3g} of {draws} draws" if draws > 1 else f"R-hat {median:.3g} of one draw"
    return f"k = {k}: {of}, Gaussian band [{low:.2g}, {high:.2g}]: {words}"
