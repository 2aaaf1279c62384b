import math

import pytest
import torch

import entryclip as ec
from entryclip.lab.paper.bayes import STUDY, study


@pytest.fixture(scope="module")
def rows():
    return list(study.run_unit(study.BayesConfig.quick(), {}))


def test_claims_and_figures(rows):
    assert all(claim.holds for claim in STUDY.claims(rows))
    assert set(STUDY.figures(rows)) == set(STUDY.captions)
    assert all(row["excess"] >= 1 - 1e-9 for row in rows if row["kind"] == "error")  # nothing beats the posterior mean


@pytest.mark.parametrize("method", ["bayes", "hard", "smooth"])
def test_errors_by_drawing(method, rows):
    """The quadrature against 10^6 draws, within 4.5 standard errors: a false alarm in 10^5 runs."""
    alpha, scale, sigma = 0.05, 3.0, 1.0
    key = {"kind": "error", "alpha": alpha, "scale": scale, "sigma": sigma, "method": method}
    (row,) = [row for row in rows if key.items() <= row.items()]
    generator, noise = torch.Generator().manual_seed(0), ec.noise.Contamination(alpha, sigma, ec.noise.Cauchy(scale))
    x = torch.randn(10**6, generator=generator, dtype=torch.float64)
    y = x + noise.sample((10**6,), generator, dtype=torch.float64)
    if method == "bayes":
        estimate = ec.noise.posterior_mean(y, 1.0, noise)
    else:
        estimate = row["gain"] * study.OPERATORS[method](y, row["threshold"])
    error = (estimate - x).square()
    assert abs(float(error.mean()) - row["mse"]) < 4.5 * float(error.std()) / 1000
    if method != "bayes":  # and the threshold and the gain are the best ones, to the noise of the draws
        for t, b in ((1.2, 1.0), (0.8, 1.0), (1.0, 1.2), (1.0, 0.8)):
            other = b * row["gain"] * study.OPERATORS[method](y, t * row["threshold"])
            assert float((other - x).square().mean()) > float(error.mean()) - 1e-4


def test_a_broken_operator_breaks_the_claims(rows):
    worse = [
        {**row, "excess": 1.5, "share": 0.4} if row.get("method") == "smooth" and row["kind"] == "error" else row
        for row in rows
    ]
    assert sum(claim.holds for claim in STUDY.claims(worse)) <= 2


def test_student_noise_runs():
    rows = list(study.run_unit(study.BayesConfig(alphas=(0.1,), scales=(3.0,), sigmas=(1.0,), nu=2.5), {}))
    errors = {row["method"]: row["mse"] for row in rows if row["kind"] == "error"}
    assert errors["bayes"] < min(errors["hard"], errors["smooth"]) < 1


@pytest.mark.parametrize("wrong", [{"alphas": (0.0,)}, {"alphas": ()}, {"scales": (-1.0,)}, {"nu": math.inf}])
def test_bad_input(wrong):
    with pytest.raises(ValueError, match="must be"):
        study.BayesConfig(**wrong)
