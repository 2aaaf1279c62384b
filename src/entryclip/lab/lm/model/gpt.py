"""The paper's language model (Section "Language model pretraining", `fig:nano_gpt_result`): a 276M transformer.

It is the speed-run model KellerJordan/modded-nanogpt @ ca964e98 (MIT), rewritten; parameters have its names, so that
`blocks.10.attn.qkv_w` is the same matrix. Without gains or biases, norm(x) = x / rms(x):

    x = x0 = norm(embed(tokens))
    block i:  x += skip_weights[i - n/2] * (output of block n - 1 - i)       in the second half
              x = lambdas[0] x + lambdas[1] x0;  x += attn(norm(x));  x += mlp(norm(x))
    logits = 30 sigmoid(lm_head(norm(x)) / (7.5 sqrt(width)))
"""

import math

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy, linear, relu, rms_norm
from torch.nn.utils import skip_init

from .attention import Attend, attend, document_numbers
from .config import Config

__all__ = ["GPT", "Config"]


class GPT(nn.Module):
    """The model of a `Config`: `model(tokens, targets)` is the mean cross entropy, `model(tokens)` the logits.

    generator   draws the initial weights; None: torch's own
    flex        True or False: with or without FlexAttention; None: with it on a GPU

    >>> with torch.device("meta"):
    ...     model = GPT(Config.paper())
    >>> sum(p.numel() for p in model.parameters())
    275598388
    >>> tokens = torch.arange(64).view(2, 32)
    >>> loss = GPT(Config.tiny())(tokens, tokens + 1).item()
    >>> f"{loss:.4f} = ln {math.exp(loss):.0f}"  # at first all logits are equal, the padding's too
    '5.9506 = ln 384'
    """

    def __init__(self, config: Config, generator: Generator | None = None, *, flex: bool | None = None) -> None:
        super().__init__()
        self.config, self.flex = config, flex
        self.embed = _table(config)
        self.value_embeds = nn.ModuleList(_table(config) for _ in range(config.value_tables))
        self.blocks = nn.ModuleList(Block(config, i) for i in range(config.layers))
        self.skip_weights = nn.Parameter(torch.empty(config.layers // 2))
        self.lm_head = _linear(config.width, config.head_rows)
        self.reset_parameters(generator)

    def reset_parameters(self, generator: Generator | None = None) -> None:
        """Draw the initial weights; also after `to_empty`, for a model that was built on `meta`.

        Maps into a residual branch: uniform, standard deviation 0.5 / sqrt(width). Maps out of one, and the head: 0.
        """
        bound = math.sqrt(3) * 0.5 / math.sqrt(self.config.width)
        for table in (self.embed, *self.value_embeds):
            nn.init.normal_(table.weight, generator=generator)
        for block in self.blocks:
            block.reset_parameters(bound, generator)  # type: ignore[operator]
        nn.init.ones_(self.skip_weights)
        nn.init.zeros_(self.lm_head.weight)

    def forward(self, tokens: Tensor, targets: Tensor | None = None, *, window: int | Tensor | None = None) -> Tensor:
        """Mean cross entropy where there are targets, else logits (..., length, head_rows) in fp32.

        tokens, targets    (sequences, length), or (length,) for one sequence
        window             blocks that the long layers look back on (default: the config's last);
                           during a run, `config.window_blocks(progress)`, as a tensor where the model is compiled
        """
        if tokens.ndim not in (1, 2) or tokens.numel() == 0:
            raise ValueError(f"tokens must be (sequences, length) or (length,), got shape {tuple(tokens.shape)}")
        if targets is not None and targets.shape != tokens.shape:
            raise ValueError(f"targets must be {tuple(tokens.shape)}, as the tokens, got {tuple(targets.shape)}")
        x = self._features(tokens if tokens.ndim == 2 else tokens[None], window)
        raw = self.lm_head(x).float().view(*tokens.shape, -1)
        logits = 30 * torch.sigmoid(raw / (7.5 * math.sqrt(self.config.width)))
        return logits if targets is None else cross_entropy(logits.flatten(0, -2), targets.flatten())

    def _features(self, tokens: Tensor, window: int | Tensor | None) -> Tensor:
        """(sequences, length) -> (sequences, length, width), normed."""
        short, long = self._attends(tokens, self.config.window_blocks() if window is None else window)
        turn = rotation(tokens.shape[1], self.config.head_size, tokens.device)
        values: list[Tensor | None] = [None] * self.config.layers
        for i, layer in enumerate(self.config.value_layers):
            values[layer] = self.value_embeds[i % self.config.value_tables](tokens)
        x = start = norm(self.embed(tokens))
        outputs: list[Tensor] = []
        for i, block in enumerate(self.blocks):
            if i >= self.config.layers // 2:
                x = x + self.skip_weights[i - self.config.layers // 2] * outputs.pop()
            x = block(x, start, values[i], turn, long if i in self.config.long_layers else short)
            if i < self.config.layers // 2:
                outputs.append(x)
        return norm(x)

    def _attends(self, tokens: Tensor, window: int | Tensor) -> tuple[Attend, Attend]:
        documents = document_numbers(tokens, self.config.separator)
        block, scale = self.config.block, self.config.attention_scale
        half = (window // 2).clamp(min=1) if isinstance(window, Tensor) else max(window // 2, 1)
        short, long = (
            attend(documents, blocks=blocks, block=block, scale=scale, flex=self.flex) for blocks in (half, window)
        )
        return short, long


class Block(nn.Module):
    """Attention, which some layers lack, and an MLP; both in residual branches."""

    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        self.attn = None if layer in config.without_attention else Attention(config)
        self.mlp = MLP(config.width)
        self.lambdas = nn.Parameter(torch.empty(2))

    def reset_parameters(self, bound: float, generator: Generator | None) -> None:
        """Entries up to `bound` in the maps into the branches."""
        if self.attn is not None:
            nn.init.uniform_(self.attn.qkv_w, -bound, bound, generator)
            nn.init.constant_(self.attn.lambdas, 0.5)
            nn.init.zeros_(self.attn.c_proj.weight)
        nn.init.uniform_(self.mlp.c_fc.weight, -bound, bound, generator)
        nn.init.zeros_(self.mlp.c_proj.weight)
        with torch.no_grad():
            self.lambdas.copy_(torch.tensor([1.0, 0.0], device=self.lambdas.device))

    def forward(self, x: Tensor, start: Tensor, value: Tensor | None, turn: "Rotation", look: Attend) -> Tensor:
        """(sequences, length, width) -> the same; `start` is the normed embedding, `value` the value embedding."""
        x = self.lambdas[0] * x + self.lambdas[1] * start
        if self.attn is not None:
            x = x + self.attn(norm(x), value, turn, look)
        return x + self.mlp(norm(x))


class Attention(nn.Module):
    """q and k are normed per head, then rotated; v is mixed with the value embedding."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads, self.head_size = config.heads, config.head_size
        inner = config.heads * config.head_size
        self.qkv_w = nn.Parameter(torch.empty(3, inner, config.width))  # three matrices, for Muon and clips as well
        self.lambdas = nn.Parameter(torch.empty(2))
        self.c_proj = _linear(inner, config.width)

    def forward(self, x: Tensor, value: Tensor | None, turn: "Rotation", look: Attend) -> Tensor:
        """(sequences, length, width) -> the same."""
        q, k, v = (self._split(each) for each in linear(x, self.qkv_w.flatten(0, 1)).chunk(3, dim=-1))
        v = self.lambdas[0] * v
        if value is not None:
            v = v + self.lambdas[1] * self._split(value)
        q, k = rotate(norm(q), turn), rotate(norm(k), turn)
        y = look(q, k, v.to(q.dtype))  # (sequences, heads, length, head_size)
        return self.c_proj(y.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        """(sequences, length, heads * head_size) -> (sequences, heads, length, head_size)"""
        return x.view(*x.shape[:-1], self.heads, self.head_size).transpose(1, 2)


class MLP(nn.Module):
    """Four times as wide inside, ReLU squared."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_fc = _linear(width, 4 * width)
        self.c_proj = _linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) -> the same."""
        return self.c_proj(relu(self.c_fc(x)).square())


def norm(x: Tensor) -> Tensor:
    """x / rms(x), over the last dimension."""
    return rms_norm(x, (x.shape[-1],))


Rotation = tuple[Tensor, Tensor]  # cos, sin: (length, head_size / 2), fp32


def rotation(length: int, head_size: int, device: torch.device) -> Rotation:
    """Angles place * frequency; half of the frequencies run from 1 down to 1/1024, the other half are 0.

    Places count from the start of the sequence: they do not restart at a new document.
    """
    frequencies = (1 / 1024) ** torch.linspace(0, 1, head_size // 4, dtype=torch.float32, device=device)
    angles = torch.arange(length, dtype=torch.float32, device=device)[:, None] * frequencies
    angles = torch.cat([angles, torch.zeros_like(angles)], dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, turn: Rotation) -> Tensor:
    """Turn the pairs (x_j, x_{j + head_size/2}) of (..., length, head_size), in fp32.

    >>> rotate(torch.tensor([[1.0, 1.0, 0.0, 0.0]]), rotation(1, 4, torch.device("cpu")))
    tensor([[1., 1., 0., 0.]])
    """
    cos, sin = turn
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat([a * cos + b * sin, b * cos - a * sin], dim=-1).to(x.dtype)


def _linear(inputs: int, outputs: int) -> nn.Linear:
    """Not yet filled: torch's own draw would be thrown away."""
    return skip_init(nn.Linear, inputs, outputs, bias=False, device=torch.get_default_device())  # type: ignore[no-untyped-call]


def _table(config: Config) -> nn.Embedding:
    return skip_init(nn.Embedding, config.vocabulary, config.width, device=torch.get_default_device())  # type: ignore[no-untyped-call]
