"""Every hidden matrix is hidden and every head is a head: models from their configs, nothing is downloaded."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from entryclip.layout import Layout
from entryclip.optim import build
from entryclip.optim.routing import routes


def roles(model, patterns=()):
    return {route.name: route.role for route in routes(model, dict(patterns))}


def named(model, role):
    return {name for name, found in roles(model).items() if found == role}


def matrices_in(model, *parts):
    """The names of the parameters with two dimensions that lie below one of the named modules."""
    return {n for n, p in model.named_parameters() if p.ndim >= 2 and any(n.startswith(f"{part}.") for part in parts)}


class Block(nn.Module):
    """A transformer block as nanoGPT has it; attention itself does not matter for routing."""

    def __init__(self, width):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.ModuleDict({"c_attn": nn.Linear(width, 3 * width), "c_proj": nn.Linear(width, width)})
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(width, 4 * width), "c_proj": nn.Linear(4 * width, width)})


class NanoGPT(nn.Module):
    """nanoGPT's names and order of modules."""

    def __init__(self, vocabulary, context, width, layers=2, tied=True, rows=nn.ModuleList):
        super().__init__()
        parts = {"wte": nn.Embedding(vocabulary, width), "wpe": nn.Embedding(context, width)}
        blocks = [Block(width) for _ in range(layers)]
        self.transformer = nn.ModuleDict(
            {**parts, "h": rows(blocks) if rows is nn.ModuleList else rows(*blocks), "ln_f": nn.LayerNorm(width)}
        )
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.transformer["wte"].weight = self.lm_head.weight


SIZES = [  # vocabulary, context, width
    (97, 32, 32),  # GPT-2 medium: width = context
    (32, 64, 32),  # a vocabulary of bytes: width = vocabulary
    (32, 32, 32),
    (128, 96, 32),  # 4 width = vocabulary, 3 width = context
    (97, 128, 32),
]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("rows", [nn.ModuleList, nn.Sequential])
@pytest.mark.parametrize("tied", [True, False])
def test_nanogpt(size, layers, rows, tied):
    model = NanoGPT(*size, layers=layers, tied=tied, rows=rows)
    assert named(model, "hidden") == matrices_in(model, "transformer.h")
    assert named(model, "head") == (set() if tied else {"lm_head.weight"})
    assert named(model, "embedding") == {"transformer.wte.weight", "transformer.wpe.weight"}


class Plain(nn.Module):
    """A transformer with names of one's own, its parts registered in the given order."""

    def __init__(self, vocabulary, context, width, head="out", order=("tok", "pos", "blocks", "HEAD"), layers=2):
        super().__init__()
        parts = {
            "tok": nn.Embedding(vocabulary, width),
            "pos": nn.Embedding(context, width),
            "blocks": nn.ModuleList([Block(width) for _ in range(layers)]),
            "HEAD": nn.Linear(width, vocabulary),
        }
        for name in order:
            setattr(self, head if name == "HEAD" else name, parts[name])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("head", ["out", "lm_head", "to_logits", "last"])
@pytest.mark.parametrize("tables", [("tok", "pos"), ("pos", "tok")])
def test_an_untied_head_of_any_name_that_stands_last(size, head, tables):
    model = Plain(*size, head=head, order=(*tables, "blocks", "HEAD"))
    assert named(model, "head") == {f"{head}.weight"}
    assert named(model, "hidden") == matrices_in(model, "blocks")


@pytest.mark.parametrize("size", SIZES)
def test_a_head_that_is_registered_first_is_found_by_its_name(size):
    model = Plain(*size, head="to_logits", order=("HEAD", "tok", "pos", "blocks"))
    assert named(model, "head") == {"to_logits.weight"}
    assert named(model, "hidden") == matrices_in(model, "blocks")


@pytest.mark.parametrize("size", SIZES)
def test_logits_from_the_table_itself(size):
    """Without a module for the head, none of the blocks' matrices is taken for one."""
    model = Plain(*size, order=("tok", "pos", "blocks"))
    assert named(model, "head") == set()
    assert named(model, "hidden") == matrices_in(model, "blocks")


def test_a_compiled_or_wrapped_model_has_the_same_roles():
    model = Plain(32, 32, 32)
    wrapped = nn.Module()
    wrapped._orig_mod = model
    assert {n.removeprefix("_orig_mod."): role for n, role in roles(wrapped).items()} == roles(model)


@pytest.mark.parametrize(("vocabulary", "context", "width"), [(97, 32, 32), (32, 32, 32), (96, 128, 32)])
def test_gpt2(vocabulary, context, width):
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=vocabulary, n_positions=context, n_embd=width, n_layer=2, n_head=2))
    assert named(model, "hidden") == matrices_in(model, "transformer.h")
    assert named(model, "embedding") == {"transformer.wte.weight", "transformer.wpe.weight"}
    assert named(model, "head") == set()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("vocabulary", [97, 32, 64])
def test_llama(vocabulary, tied):
    from transformers import LlamaConfig, LlamaForCausalLM

    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=vocabulary, max_position_embeddings=32, tie_word_embeddings=tied, **size)
    model = LlamaForCausalLM(config)
    assert named(model, "hidden") == matrices_in(model, "model.layers")
    assert named(model, "head") == (set() if tied else {"lm_head.weight"})
    assert named(model, "embedding") == {"model.embed_tokens.weight"}


@pytest.mark.parametrize("labels", [5, 24, 48])
def test_vision_transformer(labels):
    from transformers import ViTConfig, ViTForImageClassification

    size = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    model = ViTForImageClassification(ViTConfig(image_size=16, patch_size=8, num_labels=labels, **size))
    assert named(model, "head") == {"classifier.weight"}
    hidden = {n for n, p in model.named_parameters() if p.ndim in (2, 4)} - {"classifier.weight"}
    assert named(model, "hidden") == hidden


def test_encoder_and_decoder():
    """T5's table of relative positions lies inside a block and is no vocabulary."""
    from transformers import T5Config, T5ForConditionalGeneration

    size = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2}
    model = T5ForConditionalGeneration(T5Config(vocab_size=97, relative_attention_num_buckets=32, **size))
    assert named(model, "head") == set()  # tied to the table
    assert matrices_in(model, "encoder.block", "decoder.block") - named(model, "hidden") == {
        n for n in dict(model.named_parameters()) if "relative_attention_bias" in n
    }


def test_classifiers():
    mlp = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    assert named(mlp, "hidden") == {"0.weight", "2.weight", "4.weight"}  # nothing says that the last one is a head
    body = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    assert named(nn.ModuleDict({"body": body, "classifier": nn.Linear(8, 3)}), "head") == {"classifier.weight"}
    deep = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    assert named(nn.ModuleDict({"body": body, "head": deep}), "head") == {"head.2.weight"}
    several = nn.ModuleDict({"body": body, "lm_heads": nn.ModuleList([nn.Linear(8, 3), nn.Linear(8, 3)])})
    assert named(several, "head") == {"lm_heads.0.weight", "lm_heads.1.weight"}


@pytest.mark.parametrize("width", [8, 50])
def test_the_last_linear_of_a_sequential_maps_to_the_vocabulary(width):
    model = nn.Sequential(nn.Embedding(50, width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 50))
    assert roles(model)["3.weight"] == "head"
    assert roles(model)["1.weight"] == "hidden"


def test_a_convolution_with_a_kernel_of_one_is_a_matrix():
    model = nn.Sequential(nn.Conv2d(6, 8, 1), nn.Conv1d(8, 4, 1), nn.Conv2d(8, 1, 3))
    assert [roles(model)[f"{i}.weight"] for i in range(3)] == ["hidden", "hidden", "vector"]


def layouts(model):
    return {route.name: route.layout for route in routes(model, {})}


def test_layout_of_convolutions():
    """A transposed convolution maps (in) to (out x kernel): its matrix is the flattened weight's transpose."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ConvTranspose2d(8, 4, 3))
    assert layouts(model)["0.weight"] == Layout(flatten=True)
    assert layouts(model)["1.weight"] == Layout(flatten=True, transposed=True)
    assert layouts(model)["1.weight"].shape((8, 4, 3, 3)) == (36, 8)


class Conv1D(nn.Conv1d):
    """A convolution that has the name of Hugging Face's transposed Linear."""


@pytest.mark.parametrize("kind", [Conv1D, nn.Conv1d, nn.ConvTranspose1d])
@pytest.mark.parametrize("method", ["muon", "adamw"])
def test_convolutions_of_any_name_train(kind, method):
    """A wrong layout writes the update back scrambled: the loss of a subclass called Conv1D once stayed at 32.7."""
    torch.manual_seed(0)
    model, teacher, x = kind(4, 6, 3), kind(4, 6, 3), torch.randn(16, 4, 9)
    nn.init.normal_(teacher.weight)
    target = teacher(x).detach()
    optimizer = build(model, method, lr=0.05 if method == "muon" else 0.15, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=300)
    for _ in range(300):
        optimizer.zero_grad()
        loss = (model(x) - target).square().mean()
        loss.backward()
        optimizer.step()
        schedule.step()
    assert loss < 1e-3 * target.square().mean()


def test_hugging_face_conv1d_is_known_by_its_class():
    from transformers.pytorch_utils import Conv1D as Transposed

    class Renamed(Transposed):
        pass

    model = nn.ModuleDict({"c_attn": Transposed(24, 8), "c_fc": Renamed(32, 8), "conv": Conv1D(4, 6, 3)})
    found = layouts(model)
    assert found["c_attn.weight"] == Layout(transposed=True, blocks=3)
    assert found["c_fc.weight"] == Layout(transposed=True)
    assert found["conv.weight"] == Layout(flatten=True)


def test_routing_does_not_load_transformers():
    code = "import sys, torch, entryclip as ec; ec.optim.build(torch.nn.Linear(4, 4))"
    code += "; print('transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
