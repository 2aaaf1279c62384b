"""The language model of the study: the repository's small GPT at any width, on a folder of shards."""

from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from ...lm.data.batches import Batches
from ...lm.data.manifest import load_manifest
from ...lm.data.shards import Tokens
from ...lm.model.config import GPTConfig
from ...lm.model.gpt import GPT
from .training import Batch, Task

KINDS = {  # by the end of a matrix's name
    "qkv_w.q": "queries",
    "qkv_w.k": "keys",
    "qkv_w.v": "values",
    "attn.c_proj.weight": "attention's output",
    "c_fc.weight": "MLP, in",
    "mlp.c_proj.weight": "MLP, out",
    "lm_head.weight": "head",
    "embed.weight": "embedding",
}
HIDDEN = tuple(KINDS.values())[:6]


def kind_of(name: str) -> str:
    """Return the kind of a matrix by its name; what no pattern fits is a table of value embeddings.

    >>> kind_of("blocks.3.attn.qkv_w.v"), kind_of("value_embeds.0.weight")
    ('values', 'value embedding')
    """
    return next((kind for end, kind in KINDS.items() if name.endswith(end)), "value embedding")


def sizes(model: Literal["small", "tiny"], width: int) -> GPTConfig:
    """Return the layers of `model` at a width; raise an error if that is no multiple of its heads' size."""
    return (GPTConfig.small() if model == "small" else GPTConfig.tiny()).with_width(width)


def make_task(
    folder: Path, model: Literal["small", "tiny"], *, width: int, seed: int, sequences: int, length: int, needed: int
) -> Task:
    """Make a GPT with the layers of `model` and its data; raise an error if that is less than `needed` batches."""
    manifest = load_manifest(folder)
    config = sizes(model, width).with_vocabulary(manifest["vocabulary"], manifest["separator"])
    network = GPT(config, torch.Generator().manual_seed(seed))
    tokens = Tokens.open(folder, "train", vocabulary=config.vocabulary)
    batches = Batches(tokens, sequences=sequences, length=length, seed=seed)
    if len(batches) < needed:
        raise ValueError(
            f"{folder} has {len(batches)} batches of {sequences} x {length} tokens, the run needs {needed}: use more "
            "text, or fewer stages or sequences"
        )

    def loss(batch: Batch, progress: float) -> Tensor:
        found: Tensor = network(*batch, window=config.window_blocks(progress))
        return found

    return Task(network, loss, batches)
