"""The parts of a run put together: model, optimizer, data; one step, one evaluation."""

import math
import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from ....clip import smooth
from ....dtensor import whole
from ....optim.clipped_mean import ClippedMean
from ..data.batches import Batches, Tokens
from ..data.manifest import GPT2, load_manifest
from ..model.gpt import GPT
from . import methods
from .nonfinite import Diverged, find_origin
from .processes import Processes
from .schedule import lr_factor, momentum
from .settings import Settings

_IGNORED = -100  # the target that torch's cross entropy leaves out


class Trainer:
    """A run in memory: `step()` takes one step of the optimizer and returns the mean loss of its batch.

    The same settings, data and number of processes give the same run to the bit: nothing is drawn after the start.
    """

    def __init__(self, settings: Settings, data: Path, processes: Processes | None = None) -> None:
        self.settings, self.processes = settings, processes or Processes()
        self.method = methods.find(settings.method)
        self._load_data(data)
        self._make_model()
        self.done = 0  # steps
        self.seconds, self.optimizer_seconds = 0.0, 0.0
        self._rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        self._clips = [{stage: group[stage] for stage in ("pre", "post")} for group in self.optimizer.param_groups]

    def _load_data(self, folder: Path) -> None:
        settings, manifest = self.settings, self._describe(folder)
        self.config = settings.config(manifest["vocabulary"], manifest["separator"])
        train, held_out = (Tokens.of(folder, split, vocabulary=self.config.vocabulary) for split in ("train", "val"))
        parts: dict[str, Any] = {
            "rank": self.processes.rank,
            "processes": self.processes.count,
            "length": settings.length,
        }
        if settings.sequences % (self.processes.count * settings.accumulate):
            share = f"{self.processes.count} processes and {settings.accumulate} microbatches"
            raise ValueError(f"{settings.sequences} sequences do not divide over {share}: choose another number")
        self.batches = Batches(train, sequences=settings.sequences, seed=settings.seed, **parts)
        if settings.steps > len(self.batches):
            have = f"{len(train):,} tokens make {len(self.batches):,} steps of {settings.batch_tokens:,}"
            raise ValueError(f"too little data for {settings.steps:,} steps: {have}, and no token is seen twice")
        parts["seed"] = 0 if settings.eval_order == "spread" else None
        at_once = settings.sequences // settings.accumulate
        self._evaluation: dict[str, Any] = {"tokens": held_out, "sequences": at_once, **parts}
        most = len(Batches(**self._evaluation)) * at_once * settings.length
        if settings.eval_tokens > most:
            raise ValueError(f"eval_tokens must be at most {most:,}, all there is, got {settings.eval_tokens:,}")

    def _describe(self, folder: Path) -> dict[str, Any]:
        """The vocabulary: the manifest's, or GPT-2's for shards without one, as the speed-run's are.

        The first process also compares every SHA-256: what a broken disk makes of a token may be beyond the vocabulary.
        """
        if not (folder / "manifest.json").is_file():
            return GPT2
        return load_manifest(folder, thorough=self.processes.rank == 0)

    def _make_model(self) -> None:
        settings, device = self.settings, self.processes.device
        self.model = GPT(self.config, torch.Generator().manual_seed(settings.seed)).to(device)
        self.shared = self.processes.share(self.model)
        self._forward: Any = torch.compile(self.shared) if settings.compile else self.shared
        self.optimizer = methods.make_optimizer(
            *(self.model, settings.method),
            lr=settings.lr,
            other_lr=settings.other_lr,
            level=settings.level,
            weight_decay=settings.weight_decay,
            other_decay=settings.other_decay,
            clip_where=settings.clip_where,
            fused=device.type == "cpu" and not self.processes.sharded,
        )
        self._mean = None
        if settings.clip_microbatches is not None:
            if self.processes.sharded:
                raise ValueError("clip_microbatches works on whole gradients: use it with ddp, not with fsdp")
            hidden = [p for group in self.optimizer.param_groups if group["role"] == "hidden" for p in group["params"]]
            self._mean = ClippedMean(hidden, smooth(settings.clip_microbatches))

    @property
    def tokens(self) -> int:
        """Trained on so far, over all processes."""
        return self.done * self.settings.batch_tokens

    @property
    def window(self) -> int:
        """Blocks that the long layers look back on at this step."""
        return self.config.window_blocks(min(self.done / self.settings.steps, 1.0))

    def step(self) -> float:
        """One step; returns the mean loss of its batch. `Diverged` is raised in place of a step that is not finite."""
        start = time.perf_counter()
        self._set_groups()
        tokens, targets = (each.to(self.processes.device) for each in next(self.batches))
        loss = float(self.processes.mean(self._backward(tokens, targets)))
        self._check_finite(loss, tokens, targets)
        before = time.perf_counter()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self._synchronize()
        self.done += 1
        self.optimizer_seconds += time.perf_counter() - before
        self.seconds += time.perf_counter() - start
        return loss

    @torch.no_grad()
    def evaluate(self) -> float:
        """The mean loss on the first `eval_tokens` tokens held out, in whole sequences: the same ones every time,
        whatever the size of a batch. As many at once as a microbatch has, so that there is memory for it."""
        batches, left = Batches(**self._evaluation), self.settings.eval_tokens // self.settings.length
        total = torch.zeros((), dtype=torch.float64, device=self.processes.device)
        for first in range(0, left, batches.sequences):
            tokens, targets = (each.to(self.processes.device) for each in next(batches))
            count = min(max(left - first - self.processes.rank * len(tokens), 0), len(tokens))
            targets[count:] = _IGNORED  # beyond the last one; all processes go through the same motions
            loss = self._loss(tokens, targets)
            total += loss.double() * count if count else 0.0
        return float(self.processes.mean(total)) * self.processes.count / left

    def learning_rate(self) -> float:
        """Of the hidden matrices, at this step."""
        settings = self.settings
        factor = lr_factor(
            *(settings.schedule, self.done, settings.steps), warmup=settings.warmup, floor=settings.floor
        )
        return self._rates[0] * factor

    def peak_bytes(self) -> float:
        """The most memory that this process has used: on the GPU, or all of it."""
        if self.processes.device.type == "cuda":
            return float(torch.cuda.max_memory_allocated())
        scale = 1 if sys.platform == "darwin" else 1024
        return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * scale

    def _set_groups(self) -> None:
        """Learning rates, momentum and clips of this step."""
        factor = self.learning_rate() / self._rates[0]
        for group, rate, clips in zip(self.optimizer.param_groups, self._rates, self._clips, strict=True):
            group["lr"] = rate * factor
            group.update(clips if self.done >= self.settings.clip_from else dict.fromkeys(clips))
            if self.method.warm_momentum and group["method"] == "muon":
                group["momentum"] = momentum(self.done)

    def _backward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The gradient of the batch, from all its microbatches; returns its mean loss on this process."""
        count, total = self.settings.accumulate, torch.zeros((), device=tokens.device)
        pieces = zip(tokens.chunk(count), targets.chunk(count), strict=True)
        for i, (piece, aims) in enumerate(pieces):
            with self.processes.apart(self.shared, self._mean is not None or i < count - 1):
                loss = self._loss(piece, aims)
                (loss if self._mean else loss / count).backward()  # type: ignore[no-untyped-call]
            if self._mean:
                self._mean.collect()
            total += loss.detach() / count
        if self._mean:
            self._mean.write()
            self._average_gradients(count)
        return total

    def _average_gradients(self, count: int) -> None:
        """After clipping by microbatch: the clipped are means already, the others sums; both over the processes."""
        assert self._mean is not None
        clipped = set(self._mean.params)
        for p in self.model.parameters():
            if p.grad is not None:
                p.grad = self.processes.mean(p.grad if p in clipped else p.grad / count)

    def _loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        kind, low = self.processes.device.type, self.settings.precision == "bf16"
        with torch.autocast(kind, dtype=torch.bfloat16, enabled=low):
            return self._forward(tokens, targets, window=torch.tensor(self.window, device=tokens.device))

    def _check_finite(self, loss: float, tokens: Tensor, targets: Tensor) -> None:
        """Stop before a step that is not finite. Clips the norm of the gradient, too, where the method does."""
        norm = get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None])
        if not math.isfinite(loss + float(whole(norm))):
            pieces = zip(*(each.chunk(self.settings.accumulate) for each in (tokens, targets)), strict=True)
            raise Diverged(self.done, find_origin(self.model, pieces, self.window, self.processes.first))
        if self.method.stage == "norm" and self.done >= self.settings.clip_from:
            level = self.method.level if self.settings.level is None else self.settings.level
            clip_grads_with_norm_(self.model.parameters(), level, norm)  # type: ignore[arg-type]

    def _synchronize(self) -> None:
        if self.processes.device.type == "cuda":
            torch.cuda.synchronize()
