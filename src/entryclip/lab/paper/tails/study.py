"""Estimates of the tail index on matrices drawn from laws whose tail is known."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ....diagnostics import tail_index
from ....noise import Cauchy, StudentT
from ...engine.study import Piece, Row
from ..typed_rows import TypedRow


class TailCase(NamedTuple):
    """A mixture: `share` of the entries follow a law, stretched by `scale`; the others are standard Gaussian."""

    law: str
    share: float
    scale: float


TRUE_INDEX = {"Gaussian": None, "Laplace": None, "t_4": 4.0, "t_2": 2.0, "Cauchy": 1.0}  # None: not a power law
MIXTURES = ((1.0, 1.0), (0.05, 1.0), (0.05, 3.0))  # share and scale
CASES = [TailCase(law, *mixture) for law in TRUE_INDEX for mixture in MIXTURES]
CASES.remove(TailCase("Gaussian", 0.05, 1.0))  # the same as the Gaussian itself


@dataclass(frozen=True)
class TailsConfig:
    """The size of the matrices and how many are drawn of each case."""

    side: int = 768
    draws: int = 40

    def __post_init__(self) -> None:
        if self.side < 256 or self.draws < 1:
            raise ValueError(f"side must be >= 256 and draws >= 1, got {self.side} and {self.draws}")

    @classmethod
    def quick(cls) -> "TailsConfig":
        """A few seconds: three draws of each case."""
        return cls(draws=3)


@dataclass(frozen=True, kw_only=True)
class TailEstimate(TypedRow):
    """What `tail_index` says of one matrix."""

    law: str
    share: float
    scale: float
    verdict: str
    index: float
    low: float  # the ends of the index's interval
    high: float
    k: int  # how many of the largest entries the index is from
    plot_k: list[int] | None  # the Hill plot, for the first draw of a law by itself
    plot_index: list[float] | None

    @property
    def case(self) -> TailCase:
        """The mixture from which the matrix was drawn."""
        return TailCase(self.law, self.share, self.scale)


def run_unit(config: TailsConfig, piece: Piece) -> Iterator[Row]:
    """Yield one row per case and draw; the study is one unit, so `piece` is empty."""
    generator = torch.Generator().manual_seed(0)
    for case in CASES:
        for draw in range(config.draws):
            found = tail_index(sample_mixture(case, config.side, generator))
            plotted = draw == 0 and case.share == 1
            yield TailEstimate(
                **case._asdict(),
                verdict=str(found.verdict),
                index=found.index,
                low=found.interval[0],
                high=found.interval[1],
                k=found.k,
                plot_k=found.plot.k.tolist() if plotted else None,
                plot_index=(1 / found.plot.hill).tolist() if plotted else None,
            ).to_row()


def sample_mixture(case: TailCase, side: int, generator: torch.Generator) -> Tensor:
    """Draw a `side` x `side` matrix with independent entries from the mixture."""
    x = torch.randn(side, side, generator=generator)
    from_law = torch.rand(side, side, generator=generator) < case.share
    x[from_law] = case.scale * _sample_law(case.law, int(from_law.sum()), generator)
    return x


def _sample_law(law: str, count: int, generator: torch.Generator) -> Tensor:
    if law == "Gaussian":
        return torch.randn(count, generator=generator)
    if law == "Laplace":
        size = torch.empty(count, dtype=torch.float64).exponential_(generator=generator)
        return (size * (2 * torch.randint(2, (count,), generator=generator) - 1)).float()
    heavy = {"t_4": StudentT(4.0), "t_2": StudentT(2.0), "Cauchy": Cauchy(1.0)}
    return heavy[law].sample((count,), generator)
