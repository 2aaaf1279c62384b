"""The effect of noise on singular values and directions.

expansion              sigma_k(G + E) = sigma_k(G) + u_k^T E v_k + theta             (thm:taylor, Eq. taylor)
detachment             the size from which on a single entry shows in the spectrum
spiked_sigma           sigma_1 of noise with one large entry in it
max_entry_correlation  Spearman's rho of the largest entry and sigma_1               (fig:noise_models, fig:corr)
recovery               the share of G's leading singular subspaces that an estimate keeps
"""

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy import special, stats

from ..arrays import Array, is_number
from .directions import finite_matrices, finite_matrix, leading_triplets, singular_directions


@dataclass(frozen=True)
class Expansion:
    """The first-order expansion of sigma_k(G + E) with its remainder and a bound on it; arrays over the batch of E."""

    sigma: float  # sigma_k(G)
    gap: float  # from sigma_k(G) to the nearest other eigenvalue of [[0, G], [G^T, 0]]; for k = 1, sigma_1 - sigma_2
    linear: np.ndarray  # u_k^T E v_k
    perturbed: np.ndarray  # sigma_k(G + E)
    remainder: np.ndarray  # theta; never negative for k = 1
    norm: np.ndarray  # ||E||, the spectral norm
    holds: np.ndarray  # the theorem's premise, ||E|| < gap / 4
    bound: np.ndarray  # on |theta|; valid with and without the premise, see `expansion`
    sharper: np.ndarray  # a smaller bound, valid where ||E|| < gap / 2; elsewhere equal to `bound`


def expansion(G: Array, E: Array, k: int = 1) -> Expansion:
    """Expand sigma_k(G + E) for `G`, (m, n), and each matrix of `E`, (..., m, n) (thm:taylor, which is about k = 1).

    With the premise, |theta| <= 2 ||E||^2 / gap. (The paper prints the constant 4, having lost the 1/2 of its own
    Taylor formula.) Without it, theta is bounded by 2 ||E||: Weyl's inequality and the linear term. `sharper`
    integrates the second derivative, at most 2 ||E||^2 / (gap - 2 t ||E||), over t from 0 to 1 instead of taking its
    largest value: its constant goes from 1 for small E to 1.23 at ||E|| = gap / 4. The constant 1 is attained in the
    limit.

    >>> found = expansion(np.diag([3.0, 1.0]), np.array([[0.0, 0.3], [0.3, 0.0]]))
    >>> bool(found.holds), [round(float(x), 3) for x in (found.remainder, found.sharper, found.bound)]
    (True, [0.044, 0.05, 0.09])
    """
    u, (sigma,), v, (gap,) = singular_directions(G, [k])
    g = finite_matrix(G, "G")
    found = [
        (u[:, 0] @ e @ v[:, 0], _singular_values(g + e)[k - 1], _singular_values(e)[0])
        for e in finite_matrices(E, "E", G.shape)
    ]
    linear, perturbed, norm = np.array(found).T.reshape(3, *E.shape[:-2])
    share = norm / gap
    holds = share < 0.25
    bound = np.where(holds, 2 * norm * share, 2 * norm)
    a = np.where(share < 0.5, 2 * share, 0.0)
    return Expansion(
        float(sigma),
        float(gap),
        linear,
        perturbed,
        perturbed - sigma - linear,
        norm,
        holds,
        bound,
        np.where(share < 0.5, np.minimum(norm * share * _growth(a), 2 * norm), bound),
    )


def _singular_values(x: np.ndarray) -> np.ndarray:
    return torch.linalg.svdvals(torch.from_numpy(x)).numpy()


def _growth(a: np.ndarray) -> np.ndarray:
    """Return 2 int_0^1 (1 - t) / (1 - a t) dt = 2 (a + (1 - a) log(1 - a)) / a^2, by its series for small a."""
    safe = np.where(a < 1e-3, 0.5, a)
    closed = 2 * (safe + (1 - safe) * np.log1p(-safe)) / safe**2
    return np.where(a < 1e-3, 1 + a / 3 + a**2 / 6, closed)


def detachment(scale: float, shape: tuple[int, int]) -> float:
    """Return the size from which on one entry shows in the spectrum of m x n noise: scale (m n)^(1/4).

    A smaller entry disappears in the bulk, whose edge is scale (sqrt m + sqrt n); see `spiked_sigma`. From
    Benaych-Georges and Nadakuditi (2012), for large matrices.

    >>> detachment(1.0, (256, 256))
    16.0
    """
    m, n = _check_noise(scale, shape)
    return scale * (m * n) ** 0.25


def spiked_sigma(entry: float, scale: float, shape: tuple[int, int]) -> float:
    """Return sigma_1 of m x n noise of this scale that has one entry of size `entry`, for large matrices.

    >>> spiked_sigma(10.0, 1.0, (256, 256)), round(spiked_sigma(32.0, 1.0, (256, 256)), 6)
    (32.0, 40.0)
    """
    m, n = _check_noise(scale, shape)
    size = abs(entry)
    if not math.isfinite(size):
        raise ValueError(f"entry must be finite, got {entry}")
    if size <= detachment(scale, shape):
        return scale * (math.sqrt(m) + math.sqrt(n))
    return math.hypot(size, scale * math.sqrt(m)) * (math.hypot(size, scale * math.sqrt(n)) / size)


@dataclass(frozen=True)
class Correlation:
    """Spearman's rank correlation of max |E_ij| and sigma_1(E), with its interval and the data."""

    rho: float
    interval: tuple[float, float]
    largest: np.ndarray = field(repr=False)  # max |E_ij| of each matrix
    sigma: np.ndarray = field(repr=False)  # sigma_1 of each matrix


def max_entry_correlation(E: Array, level: float = 0.95) -> Correlation:
    """Compute Spearman's rho of max |E_ij| and sigma_1(E) over the matrices of `E`, (..., m, n).

    Near 1, the largest entry drives sigma_1, or the matrices differ in size.

    The interval is Fisher's with the variance of Bonett and Wright (2000). For ranks in perfect order it would have no
    width, so it is taken for the order with one pair of neighbours exchanged.

    >>> E = np.random.default_rng(0).standard_t(2, (40, 30, 30))
    >>> found = max_entry_correlation(E)
    >>> round(found.rho, 2), [round(end, 2) for end in found.interval]
    (0.98, [0.96, 0.99])
    """
    found = [(np.abs(e).max(), leading_triplets(e, 1, 1e-4)[1][0]) for e in finite_matrices(E, "E", E.shape[-2:])]
    return rank_correlation(*np.array(found).T, level=level)


def rank_correlation(largest: np.ndarray, sigma: np.ndarray, *, level: float = 0.95) -> Correlation:
    """Return the `Correlation` of given max |E_ij| and sigma_1(E), one each per matrix.

    >>> rank_correlation(np.arange(9.0), np.arange(9.0) ** 2).rho
    1.0
    """
    if not 0 < level < 1:
        raise ValueError(f"level must be in (0, 1), got {level}")
    if len(largest) < 5:
        raise ValueError(f"a correlation needs 5 or more matrices, got {len(largest)}")
    if np.ptp(largest) == 0 or np.ptp(sigma) == 0:
        raise ValueError("max |E| or sigma_1(E) is the same for all matrices: there is no correlation")
    rho = float(stats.spearmanr(largest, sigma).statistic)
    return Correlation(rho, _interval(rho, len(largest), level), largest, sigma)


def _interval(rho: float, n: int, level: float) -> tuple[float, float]:
    nearly = 1 - 12 / (n * (n**2 - 1))
    z, width = math.atanh(max(min(rho, nearly), -nearly)), special.ndtri((1 + level) / 2)
    width *= math.sqrt((1 + rho**2 / 2) / (n - 3))
    low, high = math.tanh(z - width), math.tanh(z + width)
    return (-1.0 if rho == -1 else low), (1.0 if rho == 1 else high)


@dataclass(frozen=True)
class Recovery:
    """Principal angles between the leading singular subspaces of an estimate and of G; arrays over the batch."""

    left: np.ndarray  # sine of the largest angle between the left subspaces: 0 the same subspace, 1 a direction is lost
    right: np.ndarray  # the same of the right subspaces
    kept_left: np.ndarray  # mean squared cosine: the share of G's left subspace that is kept
    kept_right: np.ndarray  # the same of the right subspace


def recovery(estimate: Array, G: Array, k: int = 1) -> Recovery:
    """Compare the leading k-dimensional singular subspaces of each `estimate`, (..., m, n), with those of `G`, (m, n).

    >>> G = np.diag([3.0, 2.0, 1.0])
    >>> found = recovery(np.diag([3.0, 1.0, 2.0]), G, k=2)
    >>> float(found.left), float(found.kept_left)
    (1.0, 0.5)
    """
    first = _leading(finite_matrix(G, "G"), "G", k)
    columns = []
    for e in finite_matrices(estimate, "estimate", G.shape):
        pairs = zip(first, _leading(e, "estimate", k), strict=True)
        cosines = [np.clip(np.linalg.svd(a.T @ b, compute_uv=False), 0, 1) for a, b in pairs]
        columns.append([*(math.sqrt(1 - c[-1] ** 2) for c in cosines), *(float(np.mean(c**2)) for c in cosines)])
    return Recovery(*np.array(columns).T.reshape(4, *estimate.shape[:-2]))


def _leading(x: np.ndarray, name: str, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return bases of the leading left and right singular subspaces; raise an error where no gap determines them."""
    if not x.any():
        raise ValueError(f"{name} is zero: it has no leading directions")
    if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= min(x.shape[-2:]):
        raise ValueError(f"k must be from 1 to {min(x.shape[-2:])}, the shorter side of {name}, got {k!r}")
    u, s, v, _ = leading_triplets(x, min(k + 1, min(x.shape[-2:])), 1e-7)
    if s.size > k and s[k - 1] - s[k] <= 1e-12 * s[0]:
        raise ValueError(f"singular values {k} and {k + 1} of {name} are equal: its leading subspace is not determined")
    return u[:, :k], v[:, :k]


def _check_noise(scale: float, shape: tuple[int, int]) -> tuple[int, int]:
    if not is_number(scale) or not 0 < scale < math.inf:
        raise ValueError(f"scale must be positive and finite, got {scale!r}")
    if len(shape) != 2 or min(shape) < 1:
        raise ValueError(f"shape must be (m, n) with both sides >= 1, got {shape}")
    return shape
