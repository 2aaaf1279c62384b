"""build() on real architectures, made from their configs: nothing is downloaded."""

import pytest
import torch
from torch import nn

import entryclip as ec
from entryclip.optim import Staged, build, explain
from entryclip.optim.build import routes


def roles(model, **options):
    return {route.name: route.role for route in routes(model, options.get("patterns", {}))}


def train_a_step(model, optimizer, loss):
    loss.backward()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer.step()
    return {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}


@pytest.fixture(scope="module")
def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=97, n_positions=16, n_embd=24, n_layer=2, n_head=2))


def test_gpt2(gpt2):
    optimizer = build(gpt2, "muon", lr=0.02, other_lr=1e-3)
    found = {name: group for group in optimizer.param_groups for name in group["param_names"]}
    assert found["transformer.wte.weight"]["role"] == "embedding"  # tied to lm_head: once, as a table
    assert "lm_head.weight" not in found
    assert found["transformer.wpe.weight"]["role"] == "embedding"
    assert found["transformer.h.0.ln_1.weight"]["role"] == "vector"
    assert found["transformer.h.0.ln_1.weight"]["weight_decay"] == 0
    attention = found["transformer.h.0.attn.c_attn.weight"]  # Conv1D: (in, 3 out)
    assert (attention["role"], attention["transposed"], attention["blocks"]) == ("hidden", True, 3)
    mlp = found["transformer.h.1.mlp.c_fc.weight"]
    assert (mlp["method"], mlp["transposed"], mlp["blocks"]) == ("muon", True, 1)
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(gpt2.parameters()))
    why = dict(zip(found["transformer.wte.weight"]["param_names"], found["transformer.wte.weight"]["why"], strict=True))
    assert why["transformer.wte.weight"] == "a table of Embedding, tied to lm_head.weight"
    tokens = torch.arange(32).reshape(2, 16)
    moved = train_a_step(gpt2, optimizer, gpt2(tokens, labels=tokens).loss)
    assert {name for name in found if "attn.c_attn.bias" not in name} <= moved


def test_conv1d_gets_the_update_of_its_transpose():
    """A Linear stored as (in, out), fused, must move as the three (out, in) matrices it holds."""
    g = torch.randn(8, 24, generator=torch.Generator().manual_seed(0))
    stored, plain = nn.Parameter(torch.zeros(8, 24)), [nn.Parameter(torch.zeros(8, 8)) for _ in range(3)]
    one = Staged([{"params": [stored], "method": "muon", "transposed": True, "blocks": 3}])
    three = ec.optim.Muon(plain)
    stored.grad = g
    for p, part in zip(plain, g.T.reshape(3, 8, 8), strict=True):
        p.grad = part.clone()
    one.step()
    three.step()
    torch.testing.assert_close(
        stored.data.T.reshape(3, 8, 8), torch.stack([p.data for p in plain]), rtol=1e-5, atol=1e-7
    )


def test_only_the_named_matrices_are_clipped(gpt2):
    """By their names, by wildcards, or by the probe's names of the matrices inside a parameter."""
    optimizer = build(gpt2, "muon", clip_where=["transformer.h.0.attn.c_attn.weight.2", "*.mlp.c_fc.weight"])
    found = {n: g for g in optimizer.param_groups if g["role"] == "hidden" for n in g["param_names"]}
    clipped = {name for name, group in found.items() if group["pre"] is not None}
    assert clipped == {f"transformer.h.{name}.weight" for name in ("0.attn.c_attn", "0.mlp.c_fc", "1.mlp.c_fc")}
    assert all(group["pre"] == ec.smooth(0.99) for name, group in found.items() if name in clipped)
    assert found.keys() == {name for name, role in roles(gpt2).items() if role == "hidden"}
    nowhere = build(gpt2, "muon", clip_where=())
    assert all(group["pre"] is None for group in nowhere.param_groups)
    everywhere = build(gpt2, "muon", clip_where="*")
    assert {group["role"] for group in everywhere.param_groups if group["pre"]} == {"hidden"}


def test_embeddings_and_heads_are_clipped_where_they_are_named():
    """They get the clip of the hidden matrices, which alone are clipped unless a pattern names the others."""
    model = nn.ModuleDict({"embed": nn.Embedding(9, 4), "inner": nn.Linear(4, 4), "lm_head": nn.Linear(4, 9)})
    for options, stage, clip in (
        ({}, "post", ec.smooth(0.995)),
        ({"post": None, "grad": ec.hard(0.9)}, "grad", ec.hard(0.9)),
    ):
        optimizer = build(model, "adamw", roles={"hidden": options}, clip_where=["embed*", "lm_head*"])
        found = {name: group for group in optimizer.param_groups for name in group["param_names"]}
        for name, group in found.items():
            other = "grad" if stage == "post" else "post"
            named = name in ("embed.weight", "lm_head.weight")
            assert (group[stage], group[other]) == (clip if named else None, None), name
    own = build(model, "adamw", roles={"embedding": {"post": ec.hard(0.5)}}, clip_where="embed.weight")
    assert [group["post"] for group in own.param_groups if group["role"] == "embedding"] == [ec.hard(0.5)]


def test_a_named_embedding_moves_by_its_clipped_update():
    draw = torch.Generator().manual_seed(0)
    w, g = torch.randn(9, 4, generator=draw), torch.randn(9, 4, generator=draw)
    model = nn.ModuleDict({"embed": nn.Embedding(9, 4), "inner": nn.Linear(4, 4)})
    alone = nn.Parameter(w.clone())
    model["embed"].weight.data.copy_(w)
    model["embed"].weight.grad, alone.grad = g.clone(), g.clone()
    build(model, "adamw", lr=0.1, clip_where="embed*").step()
    ec.optim.AdamW([alone], lr=0.1, weight_decay=0.1, post=ec.smooth(0.995)).step()
    assert torch.equal(model["embed"].weight, alone)


def test_clip_where_names_the_choices(gpt2):
    with pytest.raises(ValueError, match=r"by 'wte': there are transformer\.h\..*, transformer\.wte\.weight, .*wpe"):
        build(gpt2, "adamw", clip_where="wte")
    with pytest.raises(ValueError, match=r"names transformer\.wte\.weight, which adamw trains, but .* the stage pre"):
        build(gpt2, "muon", clip_where="transformer.wte.weight")


def test_vision_transformer():
    from transformers import ViTConfig, ViTForImageClassification

    size = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}
    torch.manual_seed(0)
    model = ViTForImageClassification(ViTConfig(image_size=16, patch_size=8, num_labels=5, **size))
    optimizer = build(model, "adamw")
    found = {name: group for group in optimizer.param_groups for name in group["param_names"]}
    by_role = {
        role: [n for n, g in found.items() if g["role"] == role] for role in ("hidden", "embedding", "head", "vector")
    }
    assert by_role["head"] == ["classifier.weight"]
    assert any("position_embeddings" in name for name in by_role["embedding"])
    assert any("cls_token" in name for name in by_role["vector"] + by_role["embedding"])
    patches = next(name for name in found if name.endswith("projection.weight"))
    assert found[patches]["flatten"]
    assert all("bias" not in name for name in by_role["hidden"])
    moved = train_a_step(model, optimizer, model(torch.randn(2, 3, 16, 16), labels=torch.tensor([0, 1])).loss)
    assert set(by_role["hidden"]) - moved == set()


def test_convolutional_network():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
    optimizer = build(model, "muon", roles={"hidden": {"sign": "svd", "weight_decay": 0.0, "pre": None}}, lr=1.0)
    before = model[0].weight.detach().clone()
    train_a_step(model, optimizer, model(torch.randn(2, 3, 8, 8)).square().mean())
    s = torch.linalg.svdvals((before - model[0].weight.detach()).reshape(8, 27))
    torch.testing.assert_close(s, torch.ones(8), rtol=1e-4, atol=1e-4)
    assert roles(model)["4.weight"] == "hidden"
    assert roles(model, patterns={"4.*": "head"})["4.weight"] == "head"


class Experts(nn.Module):
    """A mixture-of-experts block with its experts in one parameter."""

    def __init__(self, experts=3, width=8, hidden=16):
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, hidden, width))
        self.down = nn.Parameter(torch.randn(experts, width, hidden))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        gate = self.router(x).softmax(-1)
        h = torch.relu(torch.einsum("ehw,bw->beh", self.up, x))
        return self.scale * torch.einsum("be,ewh,beh->bw", gate, self.down, h)


def test_mixture_of_experts():
    torch.manual_seed(0)
    model = Experts()
    optimizer = build(model, "spectra", lr=1e-2, patterns={"router*": "vector"})
    table = {route.name: route for route in routes(model, {"router*": "vector"})}
    assert table["up"].role == table["down"].role == "hidden"
    assert table["up"].why == "a batch of matrices of Experts"
    assert table["router.weight"].role == "vector"
    assert table["scale"].why == "0 dimensions"
    assert optimizer.param_groups[0]["post"].operator is ec.soft_spectral_clip
    train_a_step(model, optimizer, model(torch.randn(5, 8)).square().mean())


def test_frozen_parameters_are_left_out_and_the_table_tells():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].weight.requires_grad_(False)
    optimizer = build(model, roles={"vector": {"lr": 0.5}})
    table = explain(optimizer)
    assert "0.weight" not in table
    assert [line.split()[0] for line in table.splitlines()] == ["name", "1.weight", "0.bias", "1.bias"]
    assert "pre smooth_shrinkage(q=0.99)" in table
    assert optimizer.param_groups[1]["lr"] == 0.5


def test_state_resumes_with_names_and_reasons(gpt2):
    optimizer = build(gpt2, "muon")
    tokens = torch.arange(32).reshape(2, 16)
    train_a_step(gpt2, optimizer, gpt2(tokens, labels=tokens).loss)
    again = build(gpt2, "muon")
    again.load_state_dict(optimizer.state_dict())
    assert explain(again) == explain(optimizer)


def test_a_global_norm_clip_on_muon_warns():
    w = nn.Parameter(torch.zeros(3, 3))
    clip = ec.Clip(ec.global_clip, ec.Fixed(1.0))
    with pytest.warns(UserWarning, match="shrinks the orthogonalised update"):
        ec.optim.Muon([w], post=clip)
    with pytest.warns(UserWarning, match="undone by the matrix sign"):
        build(nn.Linear(4, 4), roles={"hidden": {"pre": clip}})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "adam"}, "method must be one of muon, adamw, spectra"),
        ({"roles": {"matrices": {}}}, "roles name one of hidden, embedding, head, vector, got 'matrices'"),
        ({"patterns": {"*": "frozen"}}, "patterns name one of"),
    ],
)
def test_bad_input(options, words):
    with pytest.raises(ValueError, match=words):
        build(nn.Linear(4, 4), **options)
    with pytest.raises(ValueError, match="no parameters that need a gradient"):
        build(nn.ReLU())


def test_options_of_all_groups():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
    optimizer = build(model, "adamw", nonfinite="skip", fused=True, roles={"vector": {"fused": False}})
    assert [(group["nonfinite"], group["fused"]) for group in optimizer.param_groups] == [
        ("skip", True),
        ("skip", False),
    ]
    with pytest.raises(TypeError, match=r'no method here has beta; .*, as roles={"hidden": {"beta": 0.9}}'):
        build(model, "adamw", beta=0.9)
    with pytest.raises(TypeError, match=r"no method here has post; .*hard_clip"):
        build(model, "adamw", post=ec.hard(0.9))  # embeddings and vectors are not clipped: by role


def test_options_of_the_methods():
    """Each goes to the groups whose method has it; a role's own come last."""
    model = torch.nn.Sequential(torch.nn.Embedding(5, 4), torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
    optimizer = build(model, "muon", betas=(0.8, 0.95), momentum=0.7, roles={"vector": {"betas": (0.5, 0.5)}})
    found = {group["role"]: (group.get("momentum"), group.get("betas")) for group in optimizer.param_groups}
    assert found == {"hidden": (0.7, None), "embedding": (None, (0.8, 0.95)), "vector": (None, (0.5, 0.5))}
    assert build(model, "adamw", betas=(0.8, 0.95)).param_groups[0]["betas"] == (0.8, 0.95)
    with pytest.raises(TypeError, match="no method here has momentum"):
        build(model, "adamw", momentum=0.9)


def test_the_table_shows_how_the_matrices_lie():
    model = torch.nn.ModuleDict(
        {"conv": torch.nn.ConvTranspose2d(3, 8, 3), "attn": torch.nn.ModuleDict({"c_attn": torch.nn.Linear(4, 12)})}
    )
    lines = {line.split()[0]: line for line in explain(build(model, "muon")).splitlines()}
    assert lines["conv.weight"].endswith("flatten=True; transposed=True")
    assert lines["attn.c_attn.weight"].endswith("blocks=3")
    assert "blocks" not in lines["attn.c_attn.bias"]
