"""The heavy branch by Gauss-Legendre quadrature over the noise, without Faddeeva's function or Gaussian mixtures.

Tweedie's formula with the integral over u folded at 0 has positive terms only (sigma_x = 1, y > 0):

    f(y) ~ int_0^inf h(u) (e^{-(y-u)^2/2} + e^{-(y+u)^2/2}) du
    E[x | y] f(y) ~ int_0^inf psi(u) h(u) (e^{-(y-u)^2/2} - e^{-(y+u)^2/2}) du,  psi = -(log h)'
"""

import math

import numpy as np


def heavy_reference(y, nu, scale, log_density):
    """log f(y) and E[x | y]; beyond y = 60 over x = y - u, where the noise's density is nearly flat."""
    psi = lambda u: (nu + 1) * u / (nu * scale**2 + u * u)  # noqa: E731
    if y > 60:
        x, weight = legendre(np.arange(-20, 20.5, 0.5))
        u, exponent, mirror = y - x, log_density(y - x) - x * x / 2, np.zeros_like(x)
    else:
        width = min(scale * math.sqrt(nu), 1)
        fine = np.concatenate([np.logspace(-14, 0, 113) * width, np.geomspace(width, 100, 160)])
        u, weight = legendre(np.unique(np.concatenate([[0], fine, np.arange(0, 100, 0.25)])))
        exponent, mirror = log_density(u) - (y - u) ** 2 / 2, np.exp(-2 * y * u)
    terms = weight * np.exp(exponent - exponent.max())
    total = (terms * (1 + mirror)).sum()
    difference = -np.expm1(-2 * y * u) if y <= 60 else np.ones_like(u)
    log_f = exponent.max() + math.log(total) - 0.5 * math.log(2 * math.pi)
    return log_f, (terms * psi(u) * difference).sum() / total


def legendre(edges, order=40):
    """Nodes and weights of a composite rule."""
    x, w = np.polynomial.legendre.leggauss(order)
    middle, half = (edges[1:] + edges[:-1]) / 2, (edges[1:] - edges[:-1]) / 2
    return (middle[:, None] + half[:, None] * x).ravel(), (half[:, None] * w).ravel()
