"""The architecture of the paper's language model."""

from ....lazy import lazy_attributes

__getattr__, __dir__ = lazy_attributes(
    __name__, ["attention", "blocks", "chunked_mlp", "config", "gpt", "head_loss", "rotary", "row_chunks"]
)
