"""A run on disk: trains, evaluates, writes its rows and checkpoints, and goes on where it was stopped.

OUT/rows.jsonl      step, tokens, loss (mean since the row before), val_loss, lr
    record.json     settings, versions, seconds, tokens per second, the optimizer's share of the time
    checkpoints/    see `checkpoint`
"""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from ...engine.files import write_json, write_text
from ...engine.provenance import versions
from ...engine.source_hash import code_hash
from . import checkpoint, methods
from .processes import Processes
from .schedule import evaluation_steps
from .settings import Settings
from .trainer import Trainer

Row = dict[str, Any]
Progress = Callable[[Trainer, float], None]  # after every step, with its loss
_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)
STALE = ("refuse", "keep")


class Run:
    """A training run with a memory: `advance` until it is complete.

    settings    what to train, and how
    data        the folder of shards
    out         where rows and checkpoints go; None: nowhere
    save_every  steps between checkpoints (0: only at the end); the last `keep` of them stay (0: all)
    stale       whether to go on from a checkpoint of other code: refuse or keep
    start_from  a checkpoint of another run, or its folder: go on from there, at that step and with the batches that
                follow, but with these settings
    """

    def __init__(
        self,
        settings: Settings,
        data: Path,
        out: Path | None = None,
        *,
        processes: Processes | None = None,
        save_every: int = 100,
        keep: int = 2,
        stale: str = "refuse",
        start_from: Path | None = None,
        say: Callable[[str], object] = lambda _: None,
    ) -> None:
        if save_every < 0 or keep < 0:
            raise ValueError(f"save_every and keep must be 0 or more, got {save_every} and {keep}")
        if stale not in STALE:
            raise ValueError(f"stale must be one of {', '.join(STALE)}, got {stale!r}")
        self.settings, self.out, self.save_every, self.keep, self.stale = settings, out, save_every, keep, stale
        self._origin = None if start_from is None else str(start_from)
        self.trainer, self._data = Trainer(settings, data, processes), str(data)
        self.rows: list[Row] = []
        self.times: list[float] = []  # seconds in steps up to each row: not among the rows, which are always the same
        self._losses: list[float] = []
        self._saved = -1
        resumed = out is not None and self._resume(out, say)
        if start_from is not None and not resumed:
            self._branch(start_from)
            say(f"going on after step {self.trainer.done} of {start_from}")

    @property
    def folder(self) -> Path:
        """Where it writes."""
        if self.out is None:
            raise ValueError("this run has no folder: give `out`")
        return self.out

    @property
    def complete(self) -> bool:
        """Whether all steps are taken and the last evaluation is there."""
        return bool(self.rows) and self.rows[-1]["step"] == self.settings.steps

    def advance(self, progress: Progress = lambda trainer, loss: None) -> list[Row]:
        """Train to the end; returns the rows."""
        due, trainer = set(evaluation_steps(self.settings.steps, self.settings.eval_every)), self.trainer
        while not self.complete:
            if trainer.done in due and (not self.rows or self.rows[-1]["step"] < trainer.done):
                self._evaluate()
            if self.save_every and trainer.done % self.save_every == 0 and trainer.done > max(self._saved, 0):
                self.save()
            if trainer.done < self.settings.steps:
                self._losses.append(trainer.step())
                progress(trainer, self._losses[-1])
        self.save()
        return self.rows

    def _evaluate(self) -> None:
        trainer, losses = self.trainer, self._losses
        mean = sum(losses) / len(losses) if losses else None
        row = {"step": trainer.done, "tokens": trainer.tokens, "loss": mean, "val_loss": trainer.evaluate()}
        self.rows.append({**row, "lr": trainer.learning_rate()})
        self.times.append(trainer.seconds)
        self._losses = []
        self._write_rows()

    def save(self) -> None:
        """A checkpoint of this step, and the record; by the first process, of what all of them hold."""
        trainer, out = self.trainer, self.out
        if out is None or self._saved == trainer.done:
            return
        content = {
            "model": get_model_state_dict(trainer.model, options=_WHOLE),
            "optimizer": get_optimizer_state_dict(trainer.model, trainer.optimizer, options=_WHOLE),
        }
        self._saved = trainer.done
        if trainer.processes.rank == 0:
            checkpoint.save(out / "checkpoints", trainer.done, content, self._about(), keep=self.keep)
            write_json(out / "record.json", {**self._identity(), **self.speed(), "complete": self.complete})
        trainer.processes.wait()

    def speed(self) -> dict[str, float | None]:
        """Seconds in steps (not in evaluations), tokens per second, the optimizer's share of them, and memory."""
        trainer = self.trainer
        peak = {"peak_bytes": trainer.peak_bytes()}
        if not trainer.seconds:
            return {"seconds": 0.0, "tokens_per_second": None, "optimizer_share": None, **peak}
        return {
            **peak,
            "seconds": trainer.seconds,
            "tokens_per_second": trainer.tokens / trainer.seconds,
            "optimizer_share": trainer.optimizer_seconds / trainer.seconds,
        }

    def _resume(self, out: Path, say: Callable[[str], object]) -> bool:
        """Go on with a run that is there; whether there is one."""
        if self.trainer.processes.rank == 0:
            checkpoint.clear(out / "checkpoints")
        self.trainer.processes.wait()
        found = checkpoint.load_last(out / "checkpoints", say)
        if found is None:
            return False
        content, about = found
        self._check_same(about, out)
        self._take_over(content, about)
        self._saved = self.trainer.done
        self._write_rows()
        say(f"going on after step {self.trainer.done} of {self.settings.steps}")
        return True

    def _branch(self, origin: Path) -> None:
        """Begin where another run was."""
        content, about = checkpoint.load(checkpoint.last(origin))
        then, now = about["settings"], self.settings
        kinds = [methods.find(name).optimizer for name in (then["method"], now.method)]
        if kinds[0] != kinds[1]:
            raise ValueError(f"{origin} has the state of {kinds[0]}, which {now.method} cannot go on with")
        if about["step"] > now.steps:
            raise ValueError(f"{origin} is at step {about['step']}, beyond the {now.steps} steps of this run")
        ours: Any = get_optimizer_state_dict(self.trainer.model, self.trainer.optimizer)["param_groups"]
        groups = [{**group, "steps": about["step"]} for group in ours]
        state = content["optimizer"] | {"param_groups": groups}  # its moments, by name of parameter, and our options
        self._take_over({**content, "optimizer": state}, about)

    def _take_over(self, content: dict[str, Any], about: dict[str, Any]) -> None:
        trainer = self.trainer
        restore(trainer, content)
        trainer.batches.load_state_dict(about["batches"])
        trainer.done = about["step"]
        trainer.seconds, trainer.optimizer_seconds = about["seconds"], about["optimizer_seconds"]
        self.rows, self.times, self._losses = about["rows"], about["times"], about["losses"]

    def _check_same(self, about: dict[str, Any], out: Path) -> None:
        """Refuse to go on with a run that was begun otherwise."""
        now, other = self._identity(), "choose another --out"
        for name, value in now["settings"].items():
            if (then := about["settings"].get(name)) != value:
                raise ValueError(f"{out} was begun with {name} = {then}, now it is {value}: {other}")
        changed = [key for key in ("versions", "code") if about[key] != now[key]]
        if changed and self.stale == "refuse":
            raise ValueError(f"{out} was begun with other {' and '.join(changed)}: {other}, or --stale keep")

    def _identity(self) -> dict[str, Any]:
        settings = json.loads(json.dumps({**dataclasses.asdict(self.settings), "start_from": self._origin}))
        return {"settings": settings, "versions": versions(), "code": code_hash(Path(__file__))}

    def _about(self) -> dict[str, Any]:
        """What a checkpoint says of itself."""
        trainer = self.trainer
        times = {"seconds": trainer.seconds, "optimizer_seconds": trainer.optimizer_seconds, "times": self.times}
        course = {"rows": self.rows, "losses": self._losses, "batches": trainer.batches.state_dict()}
        what = {"config": dataclasses.asdict(trainer.config), "data": self._data}
        return {**self._identity(), **what, **times, **course}

    def _write_rows(self) -> None:
        if self.out is not None and self.trainer.processes.rank == 0:
            write_text(self.out / "rows.jsonl", "".join(json.dumps(row, allow_nan=False) + "\n" for row in self.rows))


def restore(trainer: Trainer, content: dict[str, Any]) -> None:
    """Weights and optimizer state of a checkpoint into a trainer, also one of another number of processes."""
    try:
        set_model_state_dict(trainer.model, content["model"], options=_WHOLE)
        set_optimizer_state_dict(trainer.model, trainer.optimizer, content["optimizer"], options=_WHOLE)
    except (RuntimeError, KeyError, ValueError) as error:
        raise ValueError(f"the checkpoint is of another model: {str(error).splitlines()[0]}") from error
