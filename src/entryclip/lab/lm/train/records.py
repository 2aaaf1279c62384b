"""Types of the files that a training run writes: `rows.jsonl`, `record.json`, and the manifest of a checkpoint."""

from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

from ..data.batches import BatchesState

SavedFields = dict[str, Any]  # the fields of a frozen dataclass as JSON holds them: tuples as lists


class EvaluationRow(TypedDict):
    """One evaluation: a line of `rows.jsonl`."""

    step: int  # steps taken so far
    tokens: int  # trained on so far
    loss: float | None  # mean training loss since the row before; None before the first step
    val_loss: float
    lr: float  # learning rate of the hidden matrices


class RunIdentity(TypedDict):
    """Settings, code and package versions of a run: a run continues only where all of them are the same."""

    settings: SavedFields
    versions: dict[str, str]
    code: str


class CheckpointRecord(RunIdentity):
    """Content of a checkpoint's manifest, beside its step and the SHA-256 of its files."""

    config: SavedFields  # the model's sizes
    data: str  # the folder of shards
    tokenizer: NotRequired[str]  # its name, with the SHA-256 of one that was trained; older checkpoints lack these two
    window_is_full: NotRequired[bool]  # whether attention looks back as far as at the end of a run from the start on
    seconds: float
    optimizer_seconds: float
    times: list[float]  # seconds up to each row
    rows: list[EvaluationRow]
    losses: list[float]  # training losses since the last row
    batches: BatchesState


@dataclass(frozen=True)
class RunSpeed:
    """Time and memory of a run; None where no step was taken yet.

    seconds             in steps, without evaluations
    optimizer_share     the optimizer's share of these seconds
    peak_bytes          most memory used by this process: on the GPU, or in all
    """

    seconds: float
    tokens_per_second: float | None
    optimizer_share: float | None
    peak_bytes: float
