"""A training run on disk: it trains, evaluates, writes rows and checkpoints, and continues where it was stopped.

OUT/rows.jsonl      step, tokens, loss (mean since the row before), val_loss, lr
    record.json     settings, versions, seconds, tokens per second, the optimizer's share of the time
    checkpoints/    see `checkpoint`
"""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

from ...engine.files import write_json, write_text
from ...engine.provenance import versions
from ...engine.source_hash import code_hash
from ..data.manifest import name_tokenizer
from . import checkpoint, training_methods
from .checkpoint import Checkpoint
from .distributed import Processes
from .records import CheckpointRecord, EvaluationRow, RunIdentity, RunSpeed
from .schedule import evaluation_steps
from .settings import Settings
from .trainer import Trainer

StepCallback = Callable[[Trainer, float], None]  # called after every step with its loss
STALE = ("refuse", "keep")


class Run:
    """A training run with rows and checkpoints: `advance()` trains to the end, from the last checkpoint.

    A run that was stopped and continued on one process has the weights and rows of an undisturbed one, to the bit.

    data        the folder of shards
    out         the folder for rows and checkpoints; None: nothing is written
    save_every  steps between checkpoints (0: only at the end); the last `keep` of them stay (0: all)
    stale       whether to continue from a checkpoint of other code or package versions: refuse or keep
    start_from  a checkpoint of another run, or its folder: start at its step with its weights, moments and the batches
                that follow, but with these settings
    weights_from a checkpoint of another run, or its folder: begin a new run, on these data, with its weights alone and
                the attention window of its end, as in fine-tuning
    say         is told, in one line each, where the run continues and which checkpoints are damaged
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
        weights_from: Path | None = None,
        say: Callable[[str], object] = lambda _: None,
    ) -> None:
        if save_every < 0 or keep < 0:
            raise ValueError(f"save_every and keep must be 0 or more, got {save_every} and {keep}")
        if stale not in STALE:
            raise ValueError(f"stale must be one of {', '.join(STALE)}, got {stale!r}")
        self.settings, self.out, self.save_every, self.keep, self.stale = settings, out, save_every, keep, stale
        if start_from is not None and weights_from is not None:
            raise ValueError(f"give start_from ({start_from}) or weights_from ({weights_from}), not both")
        self._origin = None if start_from is None else str(start_from)
        self._weights_origin = None if weights_from is None else str(weights_from)
        self.trainer, self._data = Trainer(settings, data, processes), str(data)
        self.trainer.window_is_full = weights_from is not None
        self.rows: list[EvaluationRow] = []
        self.times: list[float] = []  # seconds up to each row; not in the rows, which are the same on every machine
        self._losses: list[float] = []  # since the last row
        self._saved = -1  # the step of the last checkpoint
        resumed = out is not None and self._resume(out, say)
        if start_from is not None and not resumed:
            self._branch(start_from)
            say(f"continuing after step {self.trainer.done} of {start_from}")
        if weights_from is not None and not resumed:
            say(f"beginning with the weights of {self._take_weights(weights_from)}")

    @property
    def folder(self) -> Path:
        """The folder for rows and checkpoints; an error if there is none."""
        if self.out is None:
            raise ValueError("this run has no folder: give `out`")
        return self.out

    @property
    def complete(self) -> bool:
        """Whether all steps are taken and the last evaluation is done."""
        return bool(self.rows) and self.rows[-1]["step"] == self.settings.steps

    def advance(self, progress: StepCallback = lambda trainer, loss: None) -> list[EvaluationRow]:
        """Train to the end and return the rows."""
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
        row: EvaluationRow = {
            "step": trainer.done,
            "tokens": trainer.tokens,
            "loss": sum(losses) / len(losses) if losses else None,
            "val_loss": trainer.evaluate(),
            "lr": trainer.learning_rate(),
        }
        self.rows.append(row)
        self.times.append(trainer.seconds)
        self._losses = []
        self._write_rows()

    def save(self) -> None:
        """Write a checkpoint of this step, and the record; all processes must call it, the first one writes."""
        trainer, out = self.trainer, self.out
        if out is None or self._saved == trainer.done:
            return
        from .whole_state import gather

        weights, optimizer = gather(trainer)
        self._saved = trainer.done
        if trainer.processes.rank == 0:
            now = Checkpoint(trainer.done, weights, optimizer, self._record())
            checkpoint.save(out / "checkpoints", now, keep=self.keep)
            speed = dataclasses.asdict(self.speed())
            write_json(out / "record.json", {**self._identity(), **speed, "complete": self.complete})
        trainer.processes.barrier()

    def speed(self) -> RunSpeed:
        """Measure the run's time and memory so far."""
        trainer = self.trainer
        if not trainer.seconds:
            return RunSpeed(0.0, None, None, trainer.peak_bytes())
        share = trainer.optimizer_seconds / trainer.seconds
        return RunSpeed(trainer.seconds, trainer.tokens / trainer.seconds, share, trainer.peak_bytes())

    def _resume(self, out: Path, say: Callable[[str], object]) -> bool:
        """Continue from the last checkpoint in `out`; return whether there is one."""
        if self.trainer.processes.rank == 0:
            checkpoint.remove_incomplete(out / "checkpoints")
        self.trainer.processes.barrier()
        found = checkpoint.load_latest(out / "checkpoints", say)
        if found is None:
            return False
        self._check_same(found.record, out)
        self._restore(found)
        self._saved = self.trainer.done
        self._write_rows()
        say(f"continuing after step {self.trainer.done} of {self.settings.steps}")
        return True

    def _branch(self, origin: Path) -> None:
        """Start from another run's checkpoint: its weights and moments, but the options of this run's optimizer."""
        found, method = checkpoint.load(checkpoint.find_latest(origin)), self.settings.method
        theirs, ours = (training_methods.find(each).optimizer for each in (found.record["settings"]["method"], method))
        if theirs != ours:
            raise ValueError(f"{origin} has the state of {theirs}, which {method} cannot continue from")
        if found.step > self.settings.steps:
            raise ValueError(f"{origin} is at step {found.step}, beyond the {self.settings.steps} steps of this run")
        self._restore(found)

    def _take_weights(self, origin: Path) -> Path:
        """Begin with the weights of another run's checkpoint; return its folder."""
        from .whole_state import restore_weights

        found = checkpoint.load(checkpoint.find_latest(origin))
        theirs, ours = found.record.get("tokenizer"), name_tokenizer(Path(self._data))
        if theirs is not None and theirs != ours:
            remedy = f"`entryclip data prepare --tokenizer-of {found.record['data']}`, the data of that run"
            raise ValueError(f"{found.place} knows the tokens of {theirs}, {self._data} has those of {ours}: {remedy}")
        restore_weights(self.trainer, found)
        return found.place

    def _restore(self, found: Checkpoint) -> None:
        """Load weights and moments; the options of the optimizer's groups are those of this run's settings."""
        from .whole_state import restore

        trainer, record = self.trainer, found.record
        restore(trainer, found)
        trainer.batches.load_state_dict(record["batches"])
        trainer.done, trainer.window_is_full = found.step, record.get("window_is_full", False)
        trainer.seconds, trainer.optimizer_seconds = record["seconds"], record["optimizer_seconds"]
        self.rows, self.times, self._losses = record["rows"], record["times"], record["losses"]

    def _check_same(self, then: RunIdentity, out: Path) -> None:
        """Refuse to continue a run that was begun with other settings or, unless stale is "keep", with other code."""
        now, remedy = self._identity(), "choose another --out"
        for name, value in now["settings"].items():
            if (before := then["settings"].get(name)) != value:
                raise ValueError(f"{out} was begun with {name} = {before}, now it is {value}: {remedy}")
        same = {"versions": then["versions"] == now["versions"], "code": then["code"] == now["code"]}
        changed = [name for name, is_same in same.items() if not is_same]
        if changed and self.stale == "refuse":
            raise ValueError(f"{out} was begun with other {' and '.join(changed)}: {remedy}, or --stale keep")

    def _identity(self) -> RunIdentity:
        origins = {"start_from": self._origin, "weights_from": self._weights_origin}
        settings = json.loads(json.dumps({**dataclasses.asdict(self.settings), **origins}))
        return {"settings": settings, "versions": versions(), "code": code_hash(Path(__file__))}

    def _record(self) -> CheckpointRecord:
        trainer = self.trainer
        return {
            **self._identity(),
            "config": dataclasses.asdict(trainer.config),
            "data": self._data,
            "tokenizer": name_tokenizer(Path(self._data)),
            "window_is_full": trainer.window_is_full,
            "seconds": trainer.seconds,
            "optimizer_seconds": trainer.optimizer_seconds,
            "times": self.times,
            "rows": self.rows,
            "losses": self._losses,
            "batches": trainer.batches.state_dict(),
        }

    def _write_rows(self) -> None:
        if self.out is not None and self.trainer.processes.rank == 0:
            write_text(self.out / "rows.jsonl", "".join(json.dumps(row, allow_nan=False) + "\n" for row in self.rows))
