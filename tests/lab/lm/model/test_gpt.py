import dataclasses
import math

import numpy as np
import pytest
import torch

import entryclip as ec
from entryclip.lab.lm import GPT, Config


def filled(config, seed=0, **options):
    """Make a model in which every parameter matters: at initialization the output maps are 0."""
    generator = torch.Generator().manual_seed(seed)
    model = GPT(config, generator, **options)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=generator))
    return model


def draw(config, sequences=2, length=40, seed=0):
    tokens = torch.randint(0, config.vocabulary, (sequences, length), generator=torch.Generator().manual_seed(seed))
    tokens[:, ::11] = config.separator
    return tokens


def test_paper_model_has_the_papers_parameters():
    with torch.device("meta"):
        model = ec.lab.lm.GPT(ec.lab.lm.Config.paper())
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    assert all(p.is_meta for p in model.parameters())

    def total(*words):
        return sum(size for name, size in sizes.items() if all(word in name for word in words))

    assert sum(sizes.values()) == 275_598_388
    assert sizes["embed.weight"] == 38_597_376
    assert total("value_embeds") == 115_792_128
    assert sizes["lm_head.weight"] == 38_633_472
    assert total("attn.qkv_w") + total("attn.c_proj") == 25_952_256
    assert total("mlp") == 56_623_104
    assert (total("attn.lambdas"), total("lambdas") - total("attn.lambdas"), sizes["skip_weights"]) == (22, 24, 6)
    assert dict(model.named_parameters())["blocks.10.attn.qkv_w"].shape == (3, 768, 768)
    assert not total("blocks.7.attn")


def test_initial_loss_is_ln_50304():
    thin = dataclasses.replace(Config.paper(), width=8, heads=2, head_size=4, block=8, window=16)
    tokens = draw(thin, 1, 16)
    assert GPT(thin)(tokens, tokens).item() == pytest.approx(math.log(50304), rel=5e-7)  # fp32


def test_initial_weights():
    model = GPT(Config.small(), torch.Generator().manual_seed(0))
    bound = math.sqrt(3) * 0.5 / math.sqrt(128)
    for name, p in model.named_parameters():
        if name.endswith(("qkv_w", "c_fc.weight")):
            assert bound * 0.999 < p.abs().max() <= bound
            assert p.std().item() == pytest.approx(0.5 / math.sqrt(128), rel=0.02)
        elif "embed" in name:
            assert p.std().item() == pytest.approx(1, rel=0.01)
            assert p.abs().max() > 3
        elif name.endswith(("c_proj.weight", "lm_head.weight")):
            assert not p.any()
    assert model.blocks[0].attn.lambdas.tolist() == [0.5, 0.5]
    assert model.blocks[0].lambdas.tolist() == [1, 0]
    assert model.skip_weights.tolist() == [1] * 3
    assert sum(p.numel() for p in model.blocks.parameters()) > 1_000_000


def test_weights_come_from_the_generator():
    one, two, other = (GPT(Config.tiny(), torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(one.embed.weight, other.embed.weight)
    with torch.device("meta"):
        late = GPT(Config.tiny())
    late.to_empty(device="cpu").reset_parameters(torch.Generator().manual_seed(1))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), late.parameters(), strict=True))


def reference_logits(model, tokens, window):
    """Compute the logits of one sequence by loops over tokens and heads, in float64, from the model's description."""
    config, p = model.config, {name: x.detach().double().numpy() for name, x in model.named_parameters()}
    n, length, half, size = config.layers, len(tokens), config.layers // 2, config.head_size

    def norm(x):
        return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + np.finfo(np.float32).eps)

    def turn(x, place):
        y = x.copy()
        for j in range(size // 4):
            angle = place * (1 / 1024) ** (j / (size // 4 - 1))
            a, b = x[j], x[j + size // 2]
            y[j] = a * math.cos(angle) + b * math.sin(angle)
            y[j + size // 2] = -a * math.sin(angle) + b * math.cos(angle)
        return y

    def attention(x, i):
        q, k, v = (x @ w.T for w in p[f"blocks.{i}.attn.qkv_w"])
        mix = p[f"blocks.{i}.attn.lambdas"]
        v = mix[0] * v
        table = i if i < config.value_tables else i - (n - config.value_tables)
        if table < config.value_tables and table >= 0:
            v = v + mix[1] * p[f"value_embeds.{table}.weight"][tokens]
        reach = window if i in config.long_layers else max(window // 2, 1)
        y = np.zeros_like(v)
        for head in range(config.heads):
            part = slice(head * size, (head + 1) * size)
            for at in range(length):
                start = max([j for j in range(at + 1) if tokens[j] == config.separator], default=0)
                start = max(start, (at // config.block - reach + 1) * config.block)
                seen = range(start, at + 1)
                query = turn(norm(q[at, part]), at)
                scores = np.array([0.12 * query @ turn(norm(k[j, part]), j) for j in seen])
                weights = np.exp(scores - scores.max())
                y[at, part] = weights / weights.sum() @ v[start : at + 1, part]
        return y @ p[f"blocks.{i}.attn.c_proj.weight"].T

    x = first = norm(p["embed.weight"][tokens])
    kept = {}
    for i in range(n):
        if i >= half:
            x = x + p["skip_weights"][i - half] * kept[n - 1 - i]
        mix = p[f"blocks.{i}.lambdas"]
        x = mix[0] * x + mix[1] * first
        if i not in config.without_attention:
            x = x + attention(norm(x), i)
        inner = np.maximum(norm(x) @ p[f"blocks.{i}.mlp.c_fc.weight"].T, 0)
        x = kept[i] = x + inner**2 @ p[f"blocks.{i}.mlp.c_proj.weight"].T
    raw = norm(x) @ p["lm_head.weight"].T
    return 30 / (1 + np.exp(-raw / (7.5 * math.sqrt(config.width))))


@pytest.mark.parametrize("window", [1, 3, None])
def test_the_model_is_the_one_described(window):
    config = dataclasses.replace(Config.tiny(vocabulary=20), layers=6, value_tables=2, long_layers=(0, 5), window=30)
    model, tokens = filled(config).double(), draw(config, 1, 45)[0]
    expected = reference_logits(model, tokens.numpy(), window or config.window_blocks())
    # the model takes its rotations and its logits in fp32
    np.testing.assert_allclose(model(tokens, window=window).detach().numpy(), expected, rtol=2e-4)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("window", [1, 3, 8])
def test_flex_attention_gives_the_same_loss(window):
    config = Config.tiny()
    tokens = draw(config)
    with torch.no_grad():  # on a CPU it has no backward pass
        dense, flex = (filled(config, flex=flex)(tokens, window=window) for flex in (False, True))
    torch.testing.assert_close(dense, flex, rtol=1e-5, atol=1e-5)


def test_nothing_comes_from_the_future_another_document_or_another_sequence():
    config = Config.tiny()
    model, tokens = filled(config), draw(config)
    logits = model(tokens)
    later, elsewhere = tokens.clone(), tokens.clone()
    later[:, 30:] = 5
    torch.testing.assert_close(model(later)[:, :30], logits[:, :30])
    elsewhere[:, 1:11] = 5  # the first document; the second begins at 11
    torch.testing.assert_close(model(elsewhere)[:, 11:], logits[:, 11:])
    torch.testing.assert_close(model(tokens[1]), logits[1])


def test_every_parameter_gets_a_gradient_after_the_first_steps():
    config = Config.tiny()
    model, tokens = filled(config), draw(config)
    model(tokens, tokens.roll(-1, 1)).backward()
    for name, p in model.named_parameters():
        assert p.grad.abs().sum() > 0, name


def test_it_learns():
    config = Config.tiny()
    model = GPT(config, torch.Generator().manual_seed(0))
    tokens = draw(config, 4, 64)
    optimizer = ec.optim.build(model, "muon", lr=0.02)
    losses = []
    for _ in range(30):
        loss = model(tokens[:, :-1], tokens[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


def test_bf16_under_autocast():
    config = Config.tiny()
    model, tokens = filled(config), draw(config)
    with torch.autocast("cpu", torch.bfloat16):
        rough = model(tokens, tokens.roll(-1, 1))
    exact = model(tokens, tokens.roll(-1, 1))
    assert rough.dtype == torch.float32
    assert rough.item() == pytest.approx(exact.item(), rel=0.02)


def test_routing_knows_its_parameters():
    groups = ec.optim.build(GPT(Config.tiny()), "muon").param_groups
    roles = {name: group["role"] for group in groups for name in group["param_names"]}
    assert {name for name, role in roles.items() if role == "head"} == {"lm_head.weight"}
    assert {name for name, role in roles.items() if role == "embedding"} == {"embed.weight", "value_embeds.0.weight"}
    for name, role in roles.items():
        if name.startswith("blocks"):
            assert role == ("vector" if name.endswith("lambdas") else "hidden"), name


@pytest.mark.parametrize(
    ("tokens", "targets", "words"),
    [
        (torch.zeros(2, 3, 4, dtype=torch.long), None, r"must be \(sequences, length\).*got shape \(2, 3, 4\)"),
        (torch.zeros(0, dtype=torch.long), None, r"got shape \(0,\)"),
        (torch.zeros(2, 8, dtype=torch.long), torch.zeros(2, 7, dtype=torch.long), r"must be \(2, 8\).*got \(2, 7\)"),
    ],
)
def test_refuses(tokens, targets, words):
    with pytest.raises(ValueError, match=words):
        GPT(Config.tiny())(tokens, targets)
