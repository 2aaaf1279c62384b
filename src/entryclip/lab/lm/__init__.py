"""The paper's language model: `gpt` the model, `data` shards and batches, `prepare` text to shards, `train` runs.

config      the sizes: the paper's, and small ones with the same parts
gpt         the 276M model of `fig:nano_gpt_result`
attention   who may look at whom: causal, within a document, in a sliding window of blocks
data        shards of tokens, read by memory map; batches that are the same on any number of processes
tokenizer   gpt2, bpe:N, bytes
text        documents from text and JSONL files, also compressed
manifest    what a folder of shards holds, with hashes
prepare     documents to shards: deterministic, resumable
fineweb     the paper's data, ready as shards, from the hub
default     shards of text that is on every machine
methods     the methods of the paper's tables, and the optimizer of each
settings    all that a run is told
schedule    learning rates, and when to evaluate
trainer     a run in memory: one step, one evaluation
train       a run on disk: rows, checkpoints, going on where it was stopped
checkpoint  one folder per step, whole or not there at all
processes   one process or many, DDP or FSDP2
nonfinite   where a NaN began
probing     a trained model, its loss and samples, for the probe
"""

import importlib
from typing import Any

_MODULES = (
    "attention",
    "checkpoint",
    "config",
    "data",
    "default",
    "fineweb",
    "gpt",
    "manifest",
    "methods",
    "nonfinite",
    "prepare",
    "probing",
    "processes",
    "schedule",
    "settings",
    "text",
    "tokenizer",
    "train",
    "trainer",
)  # loaded on first use (PEP 562)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(_MODULES)
