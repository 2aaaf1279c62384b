"""Losses by token frequency: bands of the training text, and means over the validation tokens of each."""

import numpy as np
import pytest
import torch

from entryclip.lab.lm.data.shards import Tokens, write_shard
from entryclip.lab.lm.data.token_frequency import BANDS, count_tokens, frequency_bands
from entryclip.lab.lm.train.loss_by_frequency import loss_by_frequency
from entryclip.lab.lm.train.settings import Settings
from entryclip.lab.lm.train.trainer import Trainer


def test_tokens_are_counted_over_all_shards(tmp_path):
    for i, tokens in enumerate(([3, 3, 1], [3, 0])):
        write_shard(tmp_path / f"train_{i:06d}.bin", np.array(tokens, np.uint16))
    assert count_tokens(Tokens.open(tmp_path, "train", vocabulary=5), 5).tolist() == [1, 1, 0, 3, 0]


def test_the_borders_of_bands_belong_to_the_more_frequent_one():
    counts = np.array([998_889, 1000, 100, 10, 1, 0])
    assert frequency_bands(counts).tolist() == [0, 0, 1, 2, 3, 4]
    assert len(BANDS) == 5


@pytest.mark.parametrize("eval_tokens", [512, 640])  # whole batches, and one that is not
def test_the_bands_together_are_the_validation_loss(shards, eval_tokens):
    settings = Settings(model="tiny", method="adamw", steps=4, sequences=4, length=64, eval_tokens=eval_tokens)
    trainer = Trainer(settings, shards)
    trainer.step()
    found = loss_by_frequency(trainer)
    assert sum(band.tokens for band in found) == eval_tokens
    total = sum(band.tokens * band.loss for band in found if band.loss is not None)
    assert total / eval_tokens == pytest.approx(trainer.evaluate(), rel=1e-6)
    assert all((band.loss is None) == (band.tokens == 0) for band in found)


def test_a_band_has_the_loss_of_its_own_tokens(shards):
    """Against cross entropies token by token, from the model's logits."""
    settings = Settings(model="tiny", method="adamw", steps=4, sequences=4, length=64, eval_tokens=256, lr=0.01)
    trainer = Trainer(settings, shards)
    for _ in range(3):
        trainer.step()
    inputs, targets = next(trainer.data.evaluation_batches())
    with torch.no_grad():
        logits = trainer.model(inputs, window=trainer.window)
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    bands = frequency_bands(count_tokens(trainer.data.train, trainer.config.vocabulary))[targets.flatten().numpy()]
    for i, band in enumerate(loss_by_frequency(trainer)):
        if band.tokens:
            assert band.loss == pytest.approx(float(losses[torch.from_numpy(bands == i)].mean()), rel=1e-5)
