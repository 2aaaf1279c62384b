"""HeavyBall: its optimizers take a function of the list of updates; a clip of each is such a function."""

import heavyball
import torch
from torch import nn

import entryclip as ec


def clip_updates(clip: ec.Clip):
    """Return the function for `update_clipping` (or `gradient_clipping`): matrices are clipped, vectors are not."""
    return lambda updates: [clip(u) if u.ndim >= 2 else u for u in updates]


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 16))
    optimizer = heavyball.AdamW(
        model.parameters(), lr=1e-2, update_clipping=clip_updates(ec.smooth(0.995)), compile_step=False
    )
    truth, first = torch.randn(32, 16) / 4, None
    for _ in range(100):
        x = torch.randn(64, 32)
        loss = (model(x) - torch.tanh(x @ truth)).square().mean()
        first = first or loss.item()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"loss {first:.3f} -> {loss.item():.3f}")


if __name__ == "__main__":
    main()
