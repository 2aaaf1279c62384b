"""A training run in memory: model, optimizer and data, one step, one evaluation."""

import math
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from ....clip import Clip, smooth
from ....dtensor import whole
from ....optim.clipped_mean import ClippedMean
from ....optim.groups import STAGES
from ..model.gpt import GPT
from ..model.head_loss import IGNORED
from . import training_methods
from .distributed import Processes
from .divergence import Diverged, find_origin
from .schedule import lr_factor, warm_momentum
from .settings import Settings
from .training_data import TrainingData
from .training_methods import ClipStage


class Trainer:
    """A training run in memory: `step()` takes one step of the optimizer and returns the mean loss of its batch.

    The same settings, data and number of processes give the same run to the bit: all random numbers are drawn by the
    constructor. `entryclip.lab.lm.train.run.Run` adds rows and checkpoints on disk.

    data        the folder of shards
    processes   the processes that train together (default: this one alone)
    """

    def __init__(self, settings: Settings, data: Path, processes: Processes | None = None) -> None:
        self.settings, self.processes = settings, processes or Processes()
        self.method = training_methods.find(settings.method)
        self.data = TrainingData(settings, data, self.processes)
        self.config, self.batches = self.data.config, self.data.batches
        self._make_model()
        self.done = 0  # steps taken
        self.window_is_full = False  # from the first step on: of a model that was trained before
        self.seconds, self.optimizer_seconds = 0.0, 0.0
        self._rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        self._clips = [{stage: group[stage] for stage in STAGES} for group in self.optimizer.param_groups]

    def _make_model(self) -> None:
        settings, device = self.settings, self.processes.device
        self.model = GPT(self.config, torch.Generator().manual_seed(settings.seed)).to(device)
        self._wrapped = self.processes.wrap(self.model)
        self._forward: Any = torch.compile(self._wrapped) if settings.compile else self._wrapped
        self.optimizer = training_methods.make_optimizer(
            *(self.model, settings.method),
            lr=settings.lr,
            other_lr=settings.other_lr,
            level=settings.level,
            weight_decay=settings.weight_decay,
            other_decay=settings.other_decay,
            clip_where=settings.clip_where,
            fused=device.type == "cpu" and not self.processes.is_sharded,
        )
        self._clipped_mean = None
        if settings.clip_microbatches is not None:
            if self.processes.is_sharded:
                raise ValueError("clip_microbatches works on whole gradients: use it with ddp, not with fsdp")
            hidden = [p for group in self.optimizer.param_groups if group["role"] == "hidden" for p in group["params"]]
            self._clipped_mean = ClippedMean(hidden, smooth(settings.clip_microbatches))

    @property
    def tokens(self) -> int:
        """Number of tokens trained on so far, over all processes."""
        return self.done * self.settings.batch_tokens

    @property
    def window(self) -> int:
        """Number of blocks that the long layers attend to at this step."""
        progress = 1.0 if self.window_is_full else min(self.done / self.settings.steps, 1.0)
        return self.config.window_blocks(progress)

    def step(self) -> float:
        """Take one step and return the mean loss of its batch.

        Raises `Diverged` in place of a step whose loss or gradient is not finite.
        """
        start = time.perf_counter()
        self._set_groups()
        tokens, targets = (each.to(self.processes.device) for each in next(self.batches))
        loss = float(self.processes.mean(self._backward(tokens, targets)))
        norm = get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None])
        if not (math.isfinite(loss) and self._gradient_is_finite(norm)):
            pieces = zip(*(each.chunk(self.settings.accumulate) for each in (tokens, targets)), strict=True)
            with self._autocast():
                origin = find_origin(self.model, pieces, self.window, self.processes.first_message)
            raise Diverged(self.done, origin)
        self._clip_global_norm(norm)
        before = time.perf_counter()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.processes.device.type == "cuda":
            torch.cuda.synchronize()
        self.done += 1
        self.optimizer_seconds += time.perf_counter() - before
        self.seconds += time.perf_counter() - start
        return loss

    @torch.no_grad()
    def evaluate(self) -> float:
        """Compute the mean loss on `eval_tokens` validation tokens, in whole sequences.

        They are the same tokens every time, whatever the size of a batch and the number of processes.
        """
        batches, left = self.data.evaluation_batches(), self.settings.eval_tokens // self.settings.length
        total = torch.zeros((), dtype=torch.float64, device=self.processes.device)
        for first in range(0, left, batches.sequences):
            tokens, targets = (each.to(self.processes.device) for each in next(batches))
            count = min(max(left - first - self.processes.rank * len(tokens), 0), len(tokens))
            targets[count:] = IGNORED  # all processes run every batch, since a forward pass under fsdp is collective
            loss = self.loss(tokens, targets)
            total += loss.double() * count if count else 0.0
        return float(self.processes.mean(total)) * self.processes.count / left

    def learning_rate(self) -> float:
        """Compute the learning rate of the hidden matrices at this step."""
        settings = self.settings
        factor = lr_factor(
            *(settings.schedule, self.done, settings.steps), warmup=settings.warmup, floor=settings.floor
        )
        return self._rates[0] * factor

    def replace_clips(self, change: Callable[[Clip], Clip]) -> None:
        """Replace every clip of the optimizer by what `change` makes of it, such as one that counts what it does."""
        self._clips = [{stage: clip and change(clip) for stage, clip in clips.items()} for clips in self._clips]

    def peak_bytes(self) -> float:
        """Return the most memory that this process has used: on the GPU, or in all."""
        if self.processes.device.type == "cuda":
            return float(torch.cuda.max_memory_allocated())
        scale = 1 if sys.platform == "darwin" else 1024
        return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * scale

    def _set_groups(self) -> None:
        """Set learning rates, momentum and clips of this step in the optimizer's groups."""
        factor = self.learning_rate() / self._rates[0]
        for group, rate, clips in zip(self.optimizer.param_groups, self._rates, self._clips, strict=True):
            group["lr"] = rate * factor
            group.update(clips if self.done >= self.settings.clip_from else dict.fromkeys(clips))
            if self.method.warm_momentum and group["method"] == "muon":
                group["momentum"] = warm_momentum(self.done)

    def _backward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Compute the gradient of the batch, microbatch by microbatch; return its mean loss on this process."""
        count, total = self.settings.accumulate, torch.zeros((), device=tokens.device)
        pieces = zip(tokens.chunk(count), targets.chunk(count), strict=True)
        for i, (inputs, aims) in enumerate(pieces):
            with self.processes.local_gradients(self._wrapped, self._clipped_mean is not None or i < count - 1):
                loss = self.loss(inputs, aims)
                (loss if self._clipped_mean else loss / count).backward()  # type: ignore[no-untyped-call]
            if self._clipped_mean:
                self._clipped_mean.collect()
            total += loss.detach() / count
        if self._clipped_mean:
            self._clipped_mean.write()
            self._average_gradients(set(self._clipped_mean.params))
        return total

    def _average_gradients(self, means: set[Tensor]) -> None:
        """Average gradients over the processes; those not in `means` are still sums over the microbatches."""
        for p in self.model.parameters():
            if p.grad is not None:
                p.grad = self.processes.mean(p.grad if p in means else p.grad / self.settings.accumulate)

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Compute the mean loss of a batch at this step; targets of -100 are left out."""
        with self._autocast():
            return self._forward(tokens, targets, window=torch.tensor(self.window, device=tokens.device))

    def _autocast(self) -> torch.autocast:
        """Return the context in which the model runs: products in bf16 where the settings say so."""
        low = self.settings.precision == "bf16"
        return torch.autocast(self.processes.device.type, dtype=torch.bfloat16, enabled=low)

    def _gradient_is_finite(self, norm: Tensor) -> bool:
        """Return whether all entries are finite; the sum of their squares may overflow even so."""
        if math.isfinite(float(whole(norm))):
            return True
        return all(bool(whole(p.grad).isfinite().all()) for p in self.model.parameters() if p.grad is not None)

    def _clip_global_norm(self, norm: Tensor) -> None:
        """Scale the whole gradient so that its norm is at most the level, where the method does that."""
        if self.method.stage is ClipStage.NORM and self.done >= self.settings.clip_from:
            level = self.method.level if self.settings.level is None else self.settings.level
            assert level is not None
            clip_grads_with_norm_(self.model.parameters(), level, norm)
