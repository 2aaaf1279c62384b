"""The probe's verdicts on layers whose gradient noise is of a given kind."""

from collections.abc import Iterator
from dataclasses import dataclass

from ....diagnostics import probe
from ...engine.study import Piece, Row
from ..synthetic_layers import NOISE_KINDS, SyntheticLayers, loss
from ..typed_rows import TypedRow


@dataclass(frozen=True)
class ProbeTrustConfig:
    """The layers of each kind of noise, and the options of the probe."""

    shapes: tuple[tuple[int, int], ...] = ((32, 24), (64, 96), (160, 128))
    layers: int = 20  # of each kind and shape
    samples: int = 64
    directions: int = 8

    def __post_init__(self) -> None:
        if self.layers < 1 or not self.shapes or min(min(shape) for shape in self.shapes) < 8:
            raise ValueError(f"layers must be >= 1 and shapes at least 8 x 8, got {self.layers} and {self.shapes}")

    @classmethod
    def quick(cls) -> "ProbeTrustConfig":
        """Less than a minute: two small layers of each kind."""
        return cls(shapes=((32, 24),), layers=2, directions=3)


@dataclass(frozen=True, kw_only=True)
class ProbedLayer(TypedRow):
    """One layer: its noise, and what the probe says of it. The fields after `shape` are those of a probe's row."""

    kind: str  # a key of NOISE_KINDS
    shape: str  # e.g. "32 x 24"
    matrix: str
    verdict: str
    sure: bool
    spiked: float  # share of the samples in which one entry carries more than half of sigma_1
    clip: str | None
    gain: float | None
    spearman: float | None
    tail: str | None
    index: float | None
    r_hat: list[float] | None  # R-hat along the k-th direction, k = 1, 2, ...
    plain_r_hat: list[float] | None  # the same with the plain mean of all samples as the signal
    low: list[float] | None  # the band of R-hat under Gaussian noise
    high: list[float] | None


def units(config: ProbeTrustConfig) -> list[Piece]:
    """Describe one unit per kind of noise and shape."""
    return [{"kind": kind, "shape": list(shape)} for kind in NOISE_KINDS for shape in config.shapes]


def run_unit(config: ProbeTrustConfig, piece: Piece) -> Iterator[Row]:
    """Yield one row per layer of a model whose layers all have the piece's kind of noise and shape."""
    kind, shape = piece["kind"], (int(piece["shape"][0]), int(piece["shape"][1]))
    seed = 1000 * (1 + list(NOISE_KINDS).index(kind)) + 100_000 * shape[0]
    model = SyntheticLayers({str(i): (NOISE_KINDS[kind], shape) for i in range(config.layers)}, seed)
    report = probe(model, loss, range(config.samples), directions=config.directions, samples=config.samples)
    keys = ("matrix", "verdict", "sure", "spiked", "clip", "gain", "spearman", "tail", "index", "r_hat", "plain_r_hat")
    for row in report.rows():
        found = {key: row[key] for key in (*keys, "low", "high")}
        yield ProbedLayer(kind=kind, shape=f"{shape[0]} x {shape[1]}", **found).to_row()
