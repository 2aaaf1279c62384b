import pytest
import torch

import entryclip as ec
from entryclip.lab.lm import GPT, Config
from entryclip.lab.lm.train.training_methods import TRAINING_METHODS, make_optimizer
from entryclip.optim.build import explain
from entryclip.optim.norm_rules import MaxNorm, ZScore

TABLES = {  # learning rate and quantile of the paper's tables tab:hyper_nanogpt_post and tab:hyper_nanogpt_pre
    "adamw": (2e-4, None),
    "post-hard": (2e-4, 0.999),
    "post-smooth": (6e-4, 0.995),
    "muon": (2e-4, None),
    "spectra": (1.6e-3, 10.0),
    "pre-hard": (2e-4, 0.995),
    "pre-smooth": (6e-4, 0.99),
}


def group(name, role="hidden", **options):
    optimizer = make_optimizer(GPT(Config.tiny()), name, **options)
    (found,) = [each for each in optimizer.param_groups if each["role"] == role]
    return found


@pytest.mark.parametrize("name", TABLES)
def test_the_papers_tables(name):
    assert (TRAINING_METHODS[name].lr, TRAINING_METHODS[name].level) == TABLES[name]
    hidden = group(name)
    assert (hidden["lr"], hidden["weight_decay"]) == (TABLES[name][0], 0.1)
    if hidden["method"] == "muon":
        assert (hidden["momentum"], hidden["nesterov"], hidden["adjust_lr_fn"]) == (0.95, True, "match_rms_adamw")
    else:
        assert (hidden["betas"], hidden["eps"]) == ((0.9, 0.99), 1e-8)


@pytest.mark.parametrize(
    ("name", "stage", "clip"),
    [
        ("adamw", None, None),
        ("adamw-norm", None, None),
        ("adamw-hard", "grad", ec.hard(0.9)),
        ("adamw-smooth", "grad", ec.smooth(0.9)),
        ("muon-norm", None, None),
        ("adamw-auto", "grad", ec.auto()),
        ("pre-auto", "pre", ec.auto()),
        ("post-hard", "post", ec.hard(0.9)),
        ("post-smooth", "post", ec.smooth(0.9)),
        ("post-smooth-rms", "post", ec.smooth(0.9, preserve_rms=True)),
        ("muon", None, None),
        ("pre-hard", "pre", ec.hard(0.9)),
        ("pre-smooth", "pre", ec.smooth(0.9)),
    ],
)
def test_one_clip_at_its_stage_and_none_elsewhere(name, stage, clip):
    level = {} if TRAINING_METHODS[name].level is None else {"level": 0.9}
    for role in ("hidden", "embedding", "head", "vector"):
        found = group(name, role, **level)
        expected = {each: clip if role == "hidden" and each == stage else None for each in ("grad", "pre", "post")}
        assert {each: found[each] for each in expected} == expected


def test_spectra_follows_the_learning_rate_it_is_given():
    assert repr(group("spectra", lr=0.5)["post"]) == "soft_spectral_clip(10 x lr/0.5)"


def test_all_hidden_matrices_and_nothing_else_is_hidden():
    model = GPT(Config.tiny())
    optimizer = make_optimizer(model, "muon", other_lr=0.3, other_decay=0.0)
    hidden = set(optimizer.param_groups[0]["param_names"])
    assert hidden == {name for name, p in model.named_parameters() if "blocks" in name and p.ndim > 1}
    assert {(g["lr"], g["weight_decay"]) for g in optimizer.param_groups[1:]} == {(0.3, 0.0)}
    assert "lm_head.weight" in explain(optimizer)


@pytest.mark.parametrize("lr", [None, 0.05])
def test_methods_differ_only_in_what_moves_the_hidden_matrices(lr):
    """Embeddings, head and vectors have one learning rate under every method, whatever the method's own."""
    rates = {
        (group["role"], group["lr"])
        for name in TRAINING_METHODS
        if name != "snapshot"  # the speed-run's own rates
        for group in make_optimizer(GPT(Config.tiny()), name, lr=lr).param_groups
        if group["role"] != "hidden"
    }
    assert rates == {("embedding", 2e-4), ("head", 2e-4), ("vector", 2e-4)}


@pytest.mark.parametrize(("name", "stage"), [("post-smooth", "post"), ("adamw-hard", "grad"), ("spectra", "post")])
def test_tables_and_head_are_clipped_where_they_are_named(name, stage):
    where = ("embed*", "value_embeds*", "lm_head*", "blocks.0.*")
    groups = make_optimizer(GPT(Config.tiny()), name, clip_where=where).param_groups
    clipped = {each for group in groups if group[stage] is not None for each in group["param_names"]}
    assert {each for each in clipped if not each.startswith("blocks.0.")} == {
        "embed.weight",
        "value_embeds.0.weight",
        "lm_head.weight",
    }
    assert len({repr(group[stage]) for group in groups if group[stage] is not None}) == 1


def test_the_slope_is_kept():
    """Small entries keep their size on average, as with auto(); large ones are damped."""
    x = torch.randn(3, 200, 300, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[1] *= 100
    clip = TRAINING_METHODS["post-smooth-slope"].make_clip(0.99, 1e-3)
    nudged = [clip.operator(x + step, clip.threshold(x, {})) for step in (1e-6, -1e-6)]
    slope = ((nudged[0] - nudged[1]) / 2e-6).mean((1, 2))
    torch.testing.assert_close(slope, torch.ones(3, dtype=torch.float64), rtol=1e-4, atol=0)
    plain = ec.smooth(0.99)(x)
    ratio = clip(x) / plain
    torch.testing.assert_close(ratio, ratio[:, :1, :1].expand_as(ratio))
    assert (ratio[:, 0, 0] > 1.5).all()
    assert torch.equal(clip(torch.zeros(4, 4)), torch.zeros(4, 4))


def test_where_the_slope_is_kept_the_first_steps_are_about_as_long_as_adamws():
    """Adam's first update has one size in all entries: their mean slope is 0, and nothing may be divided by that."""

    def moved(method):
        model = GPT(Config.tiny(), torch.Generator().manual_seed(0))
        optimizer = make_optimizer(model, method, lr=0.01, weight_decay=0.0)
        weights, tokens = [block.mlp.c_fc.weight for block in model.blocks], torch.arange(65).repeat(4, 1)
        paths = []
        for _ in range(6):
            before = [w.detach().clone() for w in weights]
            optimizer.zero_grad()
            model(tokens[:, :-1], tokens[:, 1:]).backward()
            optimizer.step()
            paths.append([float((w.detach() - b).square().mean().sqrt()) for w, b in zip(weights, before, strict=True)])
        return torch.tensor(paths)

    assert (
        moved("post-smooth-slope") <= 1.5 * moved("adamw")
    ).all()  # without the bound up to 4, at width 128 up to 400
    ones = torch.ones(30, 40) * torch.randn(30, 40, generator=torch.Generator().manual_seed(0)).sign()
    assert float(TRAINING_METHODS["post-smooth-slope"].make_clip(0.995, 1e-3)(ones).abs().max()) <= 1.0


def test_snapshot_has_the_speed_runs_rates():
    rates = {role: group("snapshot", role)["lr"] for role in ("hidden", "embedding", "head", "vector")}
    assert rates == {"hidden": 0.05, "embedding": 0.6, "head": 0.22, "vector": 0.04}
    assert group("snapshot")["adjust_lr_fn"] == "original"
    assert group("snapshot", "head")["betas"] == (0.8, 0.95)


def test_refusals():
    model = GPT(Config.tiny())
    with pytest.raises(ValueError, match="unknown method 'adam': choose from adamw"):
        make_optimizer(model, "adam")
    with pytest.raises(ValueError, match=r"level is for methods that clip, muon does not: leave it out, got 0\.9"):
        make_optimizer(model, "muon", level=0.9)


def test_every_method_takes_a_step():
    tokens = torch.randint(0, 257, (2, 32), generator=torch.Generator().manual_seed(0))
    for name in TRAINING_METHODS:
        model = GPT(Config.tiny(), torch.Generator().manual_seed(0))
        optimizer = make_optimizer(model, name)
        before = {key: p.detach().clone() for key, p in model.named_parameters()}
        for _ in range(3):  # head and output maps begin at 0: behind each, gradients come a step later
            model(tokens, tokens).backward()
            optimizer.step()
        still = [key for key, p in model.named_parameters() if torch.equal(p, before[key]) and "lambdas" not in key]
        assert not still, name


PUBLISHED = {
    "adagc": "adamw",
    "zclip": "adamw",
    "stable-adamw": "stable-adamw",
    "spam": "spam",
    "stable-spam": "stable-spam",
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_baselines_act_on_all_parameters(name):
    """As published: embeddings, head and vectors, too."""
    found = {role: group(name, role) for role in ("hidden", "embedding", "head", "vector")}
    assert {each["method"].name for each in found.values()} == {PUBLISHED[name]}
    assert len({repr(each["grad"]) for each in found.values()}) == 1
    assert len({repr(each.get("norm")) for each in found.values()}) == 1
    assert {each["betas"] for each in found.values()} == {(0.9, 0.99)}
    assert found["vector"]["weight_decay"] == 0.0


def test_the_levels_of_the_published_baselines():
    assert repr(group("adagc", level=1.2)["grad"]) == "global_clip(1.2 x running norm, beta=0.99, warmup=100)"
    assert group("adagc")["norm"] == MaxNorm(1.0, until=100)
    assert group("zclip", level=3.0)["norm"] == ZScore(3.0)
    assert repr(group("spectral-clipping", level=2.0)["grad"]) == "spectral_clip(2 x running sigma_1, beta=0.9)"
    assert group("spectral-clipping", "head")["grad"] is None
    with pytest.raises(ValueError, match="muon-standardized has no level to choose: leave it out, got 2"):
        group("muon-standardized", level=2.0)


def test_normuon_has_the_size_of_muons_update():
    """Both have root mean square 0.2, so that a learning rate means the same."""
    sizes = {}
    for name in ("muon", "normuon"):
        model = GPT(Config.tiny(), torch.Generator().manual_seed(0))
        optimizer = make_optimizer(model, name, lr=1.0, weight_decay=0.0)
        hidden = optimizer.param_groups[0]["params"]
        before = [p.detach().clone() for p in hidden]
        for p in hidden:
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(1))
        optimizer.step()
        sizes[name] = [float((p.detach() - w).square().mean().sqrt()) for p, w in zip(hidden, before, strict=True)]
    assert sizes["normuon"] == pytest.approx([0.2] * len(hidden), rel=1e-3)
    assert sizes["muon"] == pytest.approx(sizes["normuon"], rel=0.3)  # Newton-Schulz: singular values from .7 to 1.2
