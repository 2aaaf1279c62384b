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

from .attention import AttentionFunction, document_numbers, masked_attention
from .blocks import Block, empty_linear, empty_table, norm
from .config import GPTConfig
from .head_loss import capped_logits, head_loss
from .rotary import rotation


class GPT(nn.Module):
    """The transformer of a `GPTConfig`: `model(tokens, targets)` is the mean cross entropy, `model(tokens)` the logits.

    generator   draws the initial weights; None: torch's default generator
    flex        True or False: with or without FlexAttention; None: with it on a GPU

    >>> with torch.device("meta"):
    ...     model = GPT(GPTConfig.paper())
    >>> sum(p.numel() for p in model.parameters())
    275598388
    >>> tokens = torch.arange(64).view(2, 32)
    >>> loss = GPT(GPTConfig.tiny())(tokens, tokens + 1).item()
    >>> f"{loss:.4f} = ln {math.exp(loss):.0f}"  # at first all logits are equal, the padding's too
    '5.9506 = ln 384'
    """

    def __init__(self, config: GPTConfig, generator: Generator | None = None, *, flex: bool | None = None) -> None:
        super().__init__()
        self.config, self.flex = config, flex
        self.embed = empty_table(config)
        self.value_embeds = nn.ModuleList(empty_table(config) for _ in range(config.value_tables))
        self.blocks = nn.ModuleList(Block(config, i) for i in range(config.layers))
        self.skip_weights = nn.Parameter(torch.empty(config.layers // 2))
        self.lm_head = empty_linear(config.width, config.head_rows)
        self.reset_parameters(generator)

    def reset_parameters(self, generator: Generator | None = None) -> None:
        """Draw the initial weights; also after `to_empty`, for a model that was built on `meta`.

        Embeddings are standard normal. Maps into a residual branch are uniform with standard deviation
        0.5 / sqrt(width). Maps out of one, and the head, are 0.
        """
        bound = math.sqrt(3) * 0.5 / math.sqrt(self.config.width)
        for table in (self.embed, *self.value_embeds):
            nn.init.normal_(table.weight, generator=generator)
        for block in self.blocks:
            block.reset_parameters(bound, generator)  # type: ignore[operator]
        nn.init.ones_(self.skip_weights)
        nn.init.zeros_(self.lm_head.weight)

    def forward(self, tokens: Tensor, targets: Tensor | None = None, *, window: int | Tensor | None = None) -> Tensor:
        """Return the mean cross entropy if targets are given, else logits (..., length, head_rows) in fp32.

        tokens, targets    (sequences, length), or (length,) for one sequence
        window             blocks that the long layers attend to (default: the config's largest window);
                           during a run, `config.window_blocks(progress)`, as a tensor where the model is compiled
        """
        if tokens.ndim not in (1, 2) or tokens.numel() == 0:
            raise ValueError(f"tokens must be (sequences, length) or (length,), got shape {tuple(tokens.shape)}")
        if targets is not None and targets.shape != tokens.shape:
            raise ValueError(f"targets must be {tuple(tokens.shape)}, as the tokens, got {tuple(targets.shape)}")
        x = self._features(tokens if tokens.ndim == 2 else tokens[None], window)
        if targets is None:
            return capped_logits(self.lm_head(x), self.config.width).view(*tokens.shape, -1)
        return head_loss(x.flatten(0, 1), self.lm_head, targets.flatten())

    def _features(self, tokens: Tensor, window: int | Tensor | None) -> Tensor:
        """Compute the normed output of the last block: (sequences, length) -> (sequences, length, width)."""
        short, long = self._attention(tokens, self.config.window_blocks() if window is None else window)
        angles = rotation(tokens.shape[1], self.config.head_size, tokens.device)
        values: list[Tensor | None] = [None] * self.config.layers
        for i, layer in enumerate(self.config.value_layers):
            values[layer] = self.value_embeds[i % self.config.value_tables](tokens)
        x = embedded = norm(self.embed(tokens))
        outputs: list[Tensor] = []
        for i, block in enumerate(self.blocks):
            if i >= self.config.layers // 2:
                x = x + self.skip_weights[i - self.config.layers // 2] * outputs.pop()
            x = block(x, embedded, values[i], angles, long if i in self.config.long_layers else short)
            if i < self.config.layers // 2:
                outputs.append(x)
        return norm(x)

    def _attention(self, tokens: Tensor, window: int | Tensor) -> tuple[AttentionFunction, AttentionFunction]:
        """Make the attention functions of the short and of the long layers: their masks serve all layers of a kind."""
        documents = document_numbers(tokens, self.config.separator)
        block, scale = self.config.block, self.config.attention_scale
        half = (window // 2).clamp(min=1) if isinstance(window, Tensor) else max(window // 2, 1)
        short, long = (
            masked_attention(documents, blocks=blocks, block=block, scale=scale, flex=self.flex)
            for blocks in (half, window)
        )
        return short, long
