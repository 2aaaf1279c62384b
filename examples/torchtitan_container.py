"""torchtitan: a container of optimizers that knows clipped AdamW and Muon by name.

Use `ClippedOptimizersContainer.Config` in a training configuration in the place of `OptimizersContainer.Config`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torchtitan.components.optimizer import OptimizersContainer, ParamGroupConfig

import entryclip as ec


class ClippedOptimizersContainer(OptimizersContainer):
    """torchtitan's container with `ClippedAdamW` and `ClippedMuon` beside its own optimizers."""

    @dataclass(kw_only=True, slots=True)
    class Config(OptimizersContainer.Config):
        """The options of torchtitan's own container."""

    @staticmethod
    def _resolve_optimizer_factory(name: str) -> Callable[..., torch.optim.Optimizer]:
        ours = {"ClippedAdamW": ec.optim.AdamW, "ClippedMuon": ec.optim.Muon}
        return ours.get(name) or OptimizersContainer._resolve_optimizer_factory(name)


def main() -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"hidden": nn.Linear(32, 64), "output": nn.Linear(64, 16)})
    config = ClippedOptimizersContainer.Config(
        param_groups=[
            ParamGroupConfig(
                pattern=r"hidden\.weight",
                optimizer_name="ClippedMuon",
                optimizer_kwargs={"lr": 0.02, "pre": ec.smooth(0.99)},
            ),
            ParamGroupConfig(pattern=".*", optimizer_name="ClippedAdamW", optimizer_kwargs={"lr": 3e-3}),
        ]
    )
    optimizers = ClippedOptimizersContainer(config, model_parts=[model])
    truth, losses = torch.randn(32, 16) / 4, []
    for _ in range(60):
        x = torch.randn(64, 32)
        loss = (model["output"](torch.tanh(model["hidden"](x))) - torch.tanh(x @ truth)).square().mean()
        optimizers.zero_grad()
        loss.backward()
        optimizers.step()
        losses.append(loss.item())
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    optimizers.load_state_dict(optimizers.state_dict())
    for optimizer in optimizers:
        print(optimizer.clip_report(top=1)[0])


if __name__ == "__main__":
    main()
