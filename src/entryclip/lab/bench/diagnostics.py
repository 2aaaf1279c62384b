"""Diagnostics: the tail index against a sort, the law of R in closed form against drawing a matrix."""

from collections.abc import Iterator

import numpy as np
import torch

import entryclip as ec

from ...diagnostics.null import closed_form
from .timing import Result, milliseconds, side_by_side


def run() -> Iterator[Result]:
    yield from tail()
    yield from null()


def tail() -> Iterator[Result]:
    """The whole of it (selection, Hill plot, KS distances, verdict) should cost no more than a few sorts of |x|."""
    x = torch.distributions.StudentT(2.0).sample((768, 768))
    found = ec.diagnostics.tail_index(x)
    assert found.verdict == "power law", found
    assert 1.6 < found.index < 2.4, found
    flat = x.numpy().ravel()
    times = side_by_side(
        {"ours": lambda: ec.diagnostics.tail_index(x), "sort": lambda: np.sort(np.abs(flat))}, rounds=31
    )
    assert times["ours"] < 0.05, times
    detail = f"{milliseconds(times['ours'])} against {milliseconds(times['sort'])}"
    yield Result("tail_index / numpy.sort of |x|, 768 x 768 fp32", times["ours"] / times["sort"], 3, False, detail)


def null() -> Iterator[Result]:
    """The median of R needs thousands of drawn matrices by Monte Carlo; this is the cost of one of them."""
    rng = np.random.default_rng(0)
    u, v = (x / np.linalg.norm(x) for x in (rng.standard_normal(768), rng.standard_normal(3072)))

    def draw() -> float:
        terms = u[:, None] * rng.standard_normal((768, 3072)) * v
        return float((np.abs(terms).max() / terms.sum()) ** 2)

    law = closed_form(u, v)
    drawn = [draw() for _ in range(15)]  # their median lies in this band with probability .9999
    low, high = law.band(15, level=0.9999)
    assert low < np.median(drawn) / law.median < high, drawn
    times = side_by_side({"closed": lambda: closed_form(u, v).median, "one": draw}, rounds=11)
    detail = f"{milliseconds(times['closed'])} against {milliseconds(times['one'])}"
    name = "law of R in closed form / one Monte Carlo draw, 768 x 3072"
    yield Result(name, times["closed"] / times["one"], 1.0, False, detail)
