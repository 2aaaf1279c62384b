"""NVIDIA's Emerging-Optimizers (Megatron's Muon): a clip of the momentum before its orthogonalization.

`OrthogonalizedOptimizer` hands the momentum of each matrix to `scaled_orthogonalize_fn`: a clip before it is a lambda.
"""

import torch
from emerging_optimizers.orthogonalized_optimizers import Muon, OrthogonalizedOptimizer
from torch import nn

import entryclip as ec


def clip_before_sign(optimizer: OrthogonalizedOptimizer, clip: ec.Clip) -> OrthogonalizedOptimizer:
    """Let any orthogonalized optimizer clip before its matrix sign. The clip must be one without memory."""
    sign = optimizer.scaled_orthogonalize_fn
    optimizer.scaled_orthogonalize_fn = lambda momentum: sign(clip(momentum))
    return optimizer


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64, bias=False), nn.Tanh(), nn.Linear(64, 16, bias=False))
    optimizer = clip_before_sign(Muon(model.parameters(), lr=2e-3, weight_decay=0.0), ec.smooth(0.99))
    truth, losses = torch.randn(32, 16) / 4, []
    for _ in range(100):
        x = torch.randn(64, 32)
        loss = (model(x) - torch.tanh(x @ truth)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")


if __name__ == "__main__":
    main()
