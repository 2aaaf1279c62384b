"""A training loop of one's own: a small language model of bytes, Muon with clips, a scheduler and a checkpoint."""

import argparse
import io
import pathlib

import torch
from torch import nn

import entryclip as ec

CONTEXT, WIDTH = 8, 64


def text() -> torch.Tensor:
    """Bytes to learn from, without a download: the source of a module of Python's library."""
    return torch.tensor(list(pathlib.Path(argparse.__file__).read_bytes()))


def batch(data: torch.Tensor, generator: torch.Generator, size: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    """Contexts, (size, CONTEXT), and the bytes that follow them."""
    starts = torch.randint(len(data) - CONTEXT, (size, 1), generator=generator)
    return data[starts + torch.arange(CONTEXT)], data[starts[:, 0] + CONTEXT]


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(256, WIDTH),
        nn.Flatten(),
        nn.Linear(CONTEXT * WIDTH, 128),
        nn.GELU(),
        nn.Linear(128, 128),
        nn.GELU(),
        nn.Linear(128, 256),
    )
    optimizer = ec.optim.build(model, "muon", lr=0.02, other_lr=3e-3)  # hidden matrices clipped, the rest by AdamW
    print(ec.optim.explain(optimizer))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
    data, generator = text(), torch.Generator().manual_seed(0)
    for step in range(100):
        x, y = batch(data, generator)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 20 == 0 or step == 99:
            print(f"step {step:3}: loss {loss:.3f}")
    print(optimizer.clip_report(top=3))  # before the gradients are cleared

    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    optimizer.load_state_dict(torch.load(file, weights_only=True)["optimizer"])


if __name__ == "__main__":
    main()
