"""A trained model as the probe wants it: the model of a checkpoint, its loss, and samples it has not seen."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..data.batches import Batches, Tokens
from ..model.config import Config
from ..model.gpt import GPT
from . import checkpoint

Batch = tuple[Tensor, Tensor]


def from_checkpoint(
    folder: Path, data: Path | None = None, *, sequences: int = 1
) -> tuple[GPT, Callable[[nn.Module, Batch], Tensor], Iterator[Batch]]:
    """Model, loss and batches of the last checkpoint in a run's folder, or of the checkpoint that `folder` is.

    data        the folder of shards (default: the one it was trained on)
    sequences   in a sample of the noise; the samples are those that the run would have trained on next
    """
    content, about = checkpoint.load(checkpoint.last(folder))
    sizes: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in about["config"].items()}
    config = Config(**sizes)
    model = GPT(config)
    model.load_state_dict(content["model"])
    settings, window = about["settings"], config.window_blocks(min(about["step"] / about["settings"]["steps"], 1.0))
    place = Path(about["data"]) if data is None else data
    tokens = Tokens.of(place, "train", vocabulary=config.vocabulary)
    batches = Batches(tokens, sequences=sequences, length=settings["length"], seed=settings["seed"])
    batches.position = min(about["step"] * settings["sequences"] // sequences, len(batches))

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        found: Tensor = model(*batch, window=window)
        return found

    return model, loss, batches
