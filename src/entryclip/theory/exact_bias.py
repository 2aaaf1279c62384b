"""Thresholds from the exact bias of one clipped entry, for every symmetric law that the package can draw.

The descent lemmas of the paper (lem:post-relative-descent-app, lem:pre-relative-descent-app) need of the noise only

    rho >= |E phi(g + e) - g| / |g|   and   v >= Var phi(g + e)   for all 0 < |g| <= B,

and an operator that is bounded by R. Cauchy noise enters in three places, which bound rho and v by elementary terms:
the tail gamma / (pi a) (eq:cauchy-tail-app), E min(e^2, a^2) <= 4 gamma a / pi (eq:cauchy-trunc-two-sided-app), and a
device to solve for the threshold (lem:log-device-app). Here quadrature and a root take their place. That the variance
is infinite is used nowhere.

Both operators are phi(x) = x w(|x|) with 0 <= w <= 1 falling in |x| and rising in the threshold, and every law here
is a mixture of centred Gaussians over their variance. For e ~ N(0, s^2), with e_1 a unit vector and Z Gaussian in R^3,

    E phi(g + e) / g = E w(|g e_1 + s Z|).

The length |g e_1 + s Z| grows stochastically with |g|. So the relative bias, 1 minus this, lies in [0, 1], rises with
|g| and is worst at |g| = B; and it falls as the threshold grows. Being linear in the law, this passes to mixtures. If
the threshold is at least B, weaker noise has no larger bias, as ass:noise-main asks. docs/noise-and-theory.md has the
proofs.
"""

import math

import numpy as np
from scipy.optimize import brentq

from ..noise.contamination import mixture_parts
from ..noise.laws import Law
from ..noise.moments import truncated_squares
from .entry import bounds_of, check_bound, check_threshold, relative_bias

_CELLS = 32  # of [0, phi(B)], on each of which the variance is bounded
_LARGEST = 1e100  # threshold in units of bound and noise, beyond which the squares in a rate would overflow


def smallest_threshold(operator: str, noise: Law, bound: float, slack: float) -> float:
    """Return the smallest threshold that is at least B and has a relative bias of at most `slack`, by a root.

    >>> from entryclip.noise import Laplace
    >>> round(smallest_threshold("smooth", Laplace(1.0), bound=1.0, slack=0.5), 4)
    2.8861
    """
    check_bound(bound)
    unit = bound + sum(weight * float(law.quantile(0.75)) for weight, law in mixture_parts(noise))
    if unit == 0:
        raise ValueError("with bound 0 and no noise every threshold will do: give a bound or a scale above 0")

    def excess(log_threshold: float) -> float:
        return relative_bias(operator, math.exp(log_threshold), noise, bound) - slack

    low = math.log(bound if bound > 0 else 1e-9 * unit)
    if excess(low) <= 0:
        return bound if bound > 0 else 1e-9 * unit
    high = max(low, math.log(unit)) + 1
    while excess(high) > 0:
        low, high = high, high + 2
        if high > math.log(unit * _LARGEST):
            limit = f"a threshold above {unit * _LARGEST:.0e}, where no bound says anything"
            raise ValueError(f"a relative bias of {slack:.3g} under {noise!r} needs {limit}: its tail is too heavy")
    return math.exp(float(brentq(excess, low, high, xtol=1e-12)) + 1e-10)  # on the safe side of the root


def variance_bound(operator: str, threshold: float, noise: Law, bound: float) -> float:
    """Bound Var phi(g + e) over |g| <= B, also for weaker noise, in the way of lem:hard-variance-app.

    With s = phi(g) for a g >= 0, |phi(g + e) - s| is at most |e|, since phi is 1-Lipschitz; at most R + s for e < 0;
    and for e > 0 at most R - s, or s where phi falls again. With Q(a) = E min(e^2, a^2) the variance is therefore at
    most (Q(R - s) + Q(R + s)) / 2 for hard clipping, and with max(R - s, s) for smooth shrinkage. Q is exact, and
    rises, so that its values at the ends of small cells bound it in between. The threshold must be at least B.

    >>> from entryclip.noise import Gaussian
    >>> round(variance_bound("hard", 3.0, Gaussian(1.0), bound=0.0), 4)
    0.995
    """
    check_bound(bound)
    check_threshold(threshold)
    if threshold < bound:
        raise ValueError(f"the variance is bounded for thresholds of at least the bound {bound:g}, got {threshold:g}")
    clip = bounds_of(operator)
    peak, top = clip.peak * threshold, float(clip.operator(np.array([bound]), threshold)[0])
    edges = np.linspace(0, top, _CELLS + 1) if top > 0 else np.zeros(2)
    below, above = edges[:-1], edges[1:]
    up = peak - below if clip.peak == 1 else np.maximum(peak - below, above)
    rooms = np.concatenate([up, peak + above])  # how far phi(g + e) can be from s, for e > 0 and for e < 0
    squares = truncated_squares(rooms, noise).reshape(2, -1)
    return float(squares.mean(axis=0).max())


def steps_without_cauchy(noise: Law) -> tuple[str, ...]:
    """Say in words which steps of the paper's proofs need Cauchy noise, and what replaces them for this law.

    >>> from entryclip.noise import Laplace
    >>> steps_without_cauchy(Laplace())[-1]
    'the noise has a finite variance, which Cauchy noise has not: pre-clipping converges without a clip, too'
    """
    index = noise.tail_index
    if index > 2:
        growth = (
            "the noise has a finite variance, which Cauchy noise has not: pre-clipping converges without a clip, too"
        )
    elif index == 1:
        growth = "the variance grows like the threshold, as Cauchy's does (tail index 1)"
    else:
        power = "the logarithm of the threshold" if index == 2 else f"threshold^{2 - index:.3g}"
        growth = f"the variance grows like {power} (tail index {index:.3g}), and for Cauchy noise like the threshold"
    return (
        "the threshold is a root of the exact bias; the paper's needs Cauchy's tail (eq:cauchy-tail-app, "
        "lem:log-device-app)",
        "the variance takes the exact E min(e^2, a^2); the paper's bound 4 gamma a / pi on it is Cauchy's "
        "(eq:cauchy-trunc-two-sided-app)",
        growth,
    )
