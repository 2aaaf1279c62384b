"""The language model of the paper's pretraining experiments: `GPT`, its `Config`, its data and its training.

    model/      gpt                 the 276M transformer of `fig:nano_gpt_result`, and small ones with the same parts
                config              its sizes (`GPTConfig`, here called `Config`)
                blocks, attention, rotary
    data/       prepare, fineweb    shards of tokens: made from text, or the paper's, fetched from the Hugging Face hub
                documents, tokenizer, encoding, shards, manifest
                default_data        shards of text that every machine has
                batches             batches of sequences, the same ones on any number of processes
    train/      run                 a training run on disk: rows, checkpoints, resumption
                trainer             the same in memory: one step, one evaluation
                settings            the options of a run
                training_methods    the methods of the paper's tables, and the optimizer of each
                training_data, schedule, checkpoint, records, distributed, divergence, tensorboard
                probe_inputs        a trained model, its loss and samples, for `entryclip.diagnostics.probe`

>>> import entryclip as ec
>>> ec.lab.lm.GPT(ec.lab.lm.Config.tiny()).config.width
32
"""

from typing import TYPE_CHECKING

from ...lazy import lazy_attributes

if TYPE_CHECKING:
    from .model.config import GPTConfig as Config
    from .model.gpt import GPT

__all__ = ["GPT", "Config"]

__getattr__, __dir__ = lazy_attributes(
    __name__, ["data", "model", "train"], {"GPT": ("model.gpt", "GPT"), "Config": ("model.config", "GPTConfig")}
)
