import pytest

from entryclip.lab.lm.train.settings import Settings


def test_one_name_is_not_taken_for_several():
    with pytest.raises(TypeError, match=r"clip_where must be several names, a tuple of them, got 'blocks"):
        Settings(method="post-smooth", clip_where="blocks.0.*")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "large"}, "model must be one of paper, small, tiny, got 'large'"),
        ({"method": "adam"}, "unknown method 'adam'"),
        ({"lr": 0.0}, "lr must be a finite number above 0, got 0.0"),
        ({"other_lr": float("nan")}, "other_lr must be a finite number above 0, got nan"),
        ({"weight_decay": -1.0}, "weight_decay must be a finite number, 0 or more, got -1.0"),
        ({"other_decay": float("inf")}, "other_decay must be a finite number, 0 or more, got inf"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"seed": -1}, "seed must be 0 or more, got -1"),
        ({"sequences": 9, "accumulate": 2}, "9 sequences do not divide into 2 microbatches"),
        ({"warmup": 500}, "warmup must be below the 500 steps of the run, got 500"),
        ({"floor": 1.5}, "floor must be a share of the learning rate, 0 to 1, got 1.5"),
        ({"schedule": "cosine"}, "schedule must be one of linear, wsd, constant, got 'cosine'"),
        ({"precision": "fp8"}, "precision must be one of fp32, bf16, got 'fp8'"),
        ({"eval_order": "random"}, "eval_order must be one of spread, first, got 'random'"),
        ({"method": "adagc", "clip_where": ("*",)}, "adagc acts on every parameter: leave out clip_where"),
        ({"method": "zclip", "clip_from": 3}, "zclip acts from the first step on: leave out clip_from, got 3"),
        ({"method": "adamw", "clip_where": ("*",)}, "clip_where is for methods that clip matrices, adamw does not"),
        ({"eval_tokens": 100}, "eval_tokens must be at least one sequence, 512 tokens, got 100"),
        ({"method": "muon", "level": 0.9}, "level is for methods that clip, muon does not"),
        ({"level": 1.5}, r"level is the quantile of post-smooth, in \(0, 1\], got 1.5"),
        ({"method": "spectra", "level": -3.0}, "level is the threshold of spectra, a finite number above 0, got -3.0"),
        ({"clip_microbatches": 0.0}, r"clip_microbatches must be a quantile in \(0, 1\], got 0.0"),
    ],
)
def test_bad_settings_are_refused_before_anything_starts(changes, words):
    with pytest.raises(ValueError, match=words):
        Settings(**changes)


def test_presets():
    paper, snapshot = Settings.paper(), Settings.snapshot()
    assert (paper.batch_tokens, paper.steps, paper.schedule) == (49152, 1770, "linear")
    assert (snapshot.batch_tokens, snapshot.schedule, snapshot.floor) == (8 * 49152, "wsd", 0.1)
    assert Settings.paper(steps=5).steps == 5
    assert paper.config(50257, 50256).vocabulary == 50257
