"""The residual blocks of the language model: attention with value embeddings, and an MLP with squared ReLU."""

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import linear, relu, rms_norm
from torch.nn.utils import skip_init

from .attention import AttentionFunction
from .chunked_mlp import chunked_mlp
from .config import GPTConfig
from .rotary import Rotation, rotate
from .row_chunks import can_chunk


class Block(nn.Module):
    """Attention, which the layers in `config.without_attention` lack, and an MLP, both in residual branches."""

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__()
        self.attn = None if layer in config.without_attention else Attention(config)
        self.mlp = MLP(config.width)
        self.lambdas = nn.Parameter(torch.empty(2))

    def reset_parameters(self, bound: float, generator: Generator | None) -> None:
        """Draw the maps into the branches uniformly from [-bound, bound]; set the maps out of them to 0."""
        if self.attn is not None:
            nn.init.uniform_(self.attn.qkv_w, -bound, bound, generator)
            nn.init.constant_(self.attn.lambdas, 0.5)
            nn.init.zeros_(self.attn.c_proj.weight)
        nn.init.uniform_(self.mlp.c_fc.weight, -bound, bound, generator)
        nn.init.zeros_(self.mlp.c_proj.weight)
        with torch.no_grad():
            self.lambdas.copy_(torch.tensor([1.0, 0.0], device=self.lambdas.device))

    def forward(
        self, x: Tensor, embedded: Tensor, value: Tensor | None, angles: Rotation, attend: AttentionFunction
    ) -> Tensor:
        """Apply the block to x.

        x, embedded     (sequences, length, width): the input, and the normed token embedding
        value           the value embedding, (sequences, length, heads * head_size), or None
        """
        x = self.lambdas[0] * x + self.lambdas[1] * embedded
        if self.attn is not None:
            x = x + self.attn(norm(x), value, angles, attend)
        return x + self.mlp(norm(x))


class Attention(nn.Module):
    """Multi-head attention: queries and keys normed per head, then rotated; values mixed with the value embedding."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads, self.head_size = config.heads, config.head_size
        inner = config.heads * config.head_size
        self.qkv_w = nn.Parameter(torch.empty(3, inner, config.width))  # a batch of three matrices, to Muon and clips
        self.lambdas = nn.Parameter(torch.empty(2))
        self.c_proj = empty_linear(inner, config.width)

    def forward(self, x: Tensor, value: Tensor | None, angles: Rotation, attend: AttentionFunction) -> Tensor:
        """(sequences, length, width) -> the same shape."""
        q, k, v = (self._split(each) for each in linear(x, self.qkv_w.flatten(0, 1)).chunk(3, dim=-1))
        v = self.lambdas[0] * v
        if value is not None:
            v = v + self.lambdas[1] * self._split(value)
        q, k = rotate(norm(q), angles), rotate(norm(k), angles)
        y = attend(q, k, v.to(q.dtype))  # (sequences, heads, length, head_size)
        return self.c_proj(y.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        """(sequences, length, heads * head_size) -> (sequences, heads, length, head_size)"""
        return x.view(*x.shape[:-1], self.heads, self.head_size).transpose(1, 2)


class MLP(nn.Module):
    """Two linear maps, four times as wide inside, with ReLU squared between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_fc = empty_linear(width, 4 * width)
        self.c_proj = empty_linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) -> the same shape."""
        if can_chunk(x, self.c_fc, self.c_proj):
            return chunked_mlp(x.flatten(0, -2), self.c_fc.weight, self.c_proj.weight).view_as(x)
        return self.plain(x)

    def plain(self, x: Tensor) -> Tensor:
        """Compute the MLP by its two modules: the specification of `chunked_mlp`."""
        y: Tensor = self.c_proj(relu(self.c_fc(x)).square())
        return y


def norm(x: Tensor) -> Tensor:
    """Divide x by its root mean square over the last dimension."""
    return rms_norm(x, (x.shape[-1],))


def empty_linear(inputs: int, outputs: int) -> nn.Linear:
    """Make a linear map without bias and without initial values: `reset_parameters` draws them."""
    return skip_init(nn.Linear, inputs, outputs, bias=False, device=torch.get_default_device())  # type: ignore[no-untyped-call]


def empty_table(config: GPTConfig) -> nn.Embedding:
    """Make an embedding of the vocabulary without initial values: `reset_parameters` draws them."""
    return skip_init(nn.Embedding, config.vocabulary, config.width, device=torch.get_default_device())  # type: ignore[no-untyped-call]
