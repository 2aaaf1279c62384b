"""A trained model as `entryclip.diagnostics.probe` takes it: the model of a checkpoint, its loss and new samples."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from torch import Tensor, nn

from ...engine.schema import BadFile
from ..data.batches import Batches
from ..data.shards import Tokens
from ..model.config import GPTConfig
from ..model.gpt import GPT
from . import checkpoint

Sample = tuple[Tensor, Tensor]  # tokens and targets, each (sequences, length)


class ProbeInputs(NamedTuple):
    """The arguments of `probe(model, loss, batches)`."""

    model: GPT
    loss: Callable[[nn.Module, Sample], Tensor]
    batches: Iterator[Sample]


def from_checkpoint(folder: Path, data: Path | None = None, *, sequences: int = 1) -> ProbeInputs:
    """Load the last checkpoint of a run's folder, or the checkpoint that `folder` is itself.

    data        the folder of shards (default: the one it was trained on)
    sequences   sequences per sample of the noise; the samples are those that the run would have trained on next
    """
    saved = checkpoint.load(checkpoint.find_latest(folder))
    settings = saved.record["settings"]
    config = GPTConfig.from_json(saved.record["config"])
    model = GPT(config)
    try:
        model.load_state_dict(saved.weights)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise BadFile(f"{folder} holds the weights of another model ({reason}): remove the checkpoint") from error
    window = config.window_blocks(min(saved.step / settings["steps"], 1.0))
    place = Path(saved.record["data"]) if data is None else data
    tokens = Tokens.open(place, "train", vocabulary=config.vocabulary)
    batches = Batches(tokens, sequences=sequences, length=settings["length"], seed=settings["seed"])
    batches.position = min(saved.step * settings["sequences"] // sequences, len(batches))

    def loss(model: nn.Module, sample: Sample) -> Tensor:
        found: Tensor = model(*sample, window=window)
        return found

    return ProbeInputs(model, loss, batches)
