"""Data of the language model: documents become tokens, tokens become shards on disk, shards become batches."""

from ....lazy import lazy_attributes

__getattr__, __dir__ = lazy_attributes(
    __name__,
    ["batches", "default_data", "documents", "encoding", "fineweb", "manifest", "prepare", "shards", "tokenizer"],
)
