"""The data of a training run: the model's sizes for its vocabulary, training batches and evaluation batches."""

from pathlib import Path

from ..data.batches import Batches
from ..data.manifest import GPT2, load_manifest
from ..data.shards import Tokens
from ..model.config import GPTConfig
from .distributed import Processes
from .settings import Settings


class TrainingData:
    """Training and validation batches of one process, from a folder of shards.

    The constructor refuses data that is too small for the settings. Shards without a manifest are taken for GPT-2's
    tokens, as the speed-run's are.

    config      sizes of the model, with the vocabulary of the data
    train       all tokens to train on
    batches     training batches, each token once
    """

    def __init__(self, settings: Settings, folder: Path, processes: Processes) -> None:
        self._settings, self._processes = settings, processes
        self.config = self._read_config(folder)
        first = processes.rank == 0
        self._validation = Tokens.open(folder, "val", vocabulary=self.config.vocabulary, thorough=first)
        self.train = train = Tokens.open(folder, "train", vocabulary=self.config.vocabulary, thorough=first)
        if settings.sequences % (processes.count * settings.accumulate):
            share = f"{processes.count} processes and {settings.accumulate} microbatches"
            raise ValueError(f"{settings.sequences} sequences do not divide over {share}: choose another number")
        self.batches = self._make_batches(train, settings.sequences, settings.seed)
        if settings.steps > len(self.batches):
            have = f"{len(train):,} tokens make {len(self.batches):,} steps of {settings.batch_tokens:,}"
            raise ValueError(f"too little data for {settings.steps:,} steps: {have}, and no token is seen twice")
        evaluation = self.evaluation_batches()
        most = len(evaluation) * evaluation.sequences * settings.length
        if settings.eval_tokens > most:
            raise ValueError(f"eval_tokens must be at most {most:,}, all there is, got {settings.eval_tokens:,}")

    def evaluation_batches(self) -> Batches:
        """Start a pass over the validation tokens, in batches of a microbatch's size, so that they fit in memory."""
        seed = 0 if self._settings.eval_order == "spread" else None
        return self._make_batches(self._validation, self._settings.sequences // self._settings.accumulate, seed)

    def _read_config(self, folder: Path) -> GPTConfig:
        """Return the model's sizes for the vocabulary of the data.

        The first process also compares every shard with its SHA-256.
        """
        if not (folder / "manifest.json").exists():
            return self._settings.config(**GPT2)
        manifest = load_manifest(folder, thorough=self._processes.rank == 0)
        return self._settings.config(manifest["vocabulary"], manifest["separator"])

    def _make_batches(self, tokens: Tokens, sequences: int, seed: int | None) -> Batches:
        length, rank, count = self._settings.length, self._processes.rank, self._processes.count
        return Batches(tokens, sequences=sequences, length=length, seed=seed, rank=rank, processes=count)
