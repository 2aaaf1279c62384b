"""Which matrices are looked at, and what they are called, on real architectures."""

import pytest
import torch
from torch import nn

from entryclip.diagnostics.matrices import select
from entryclip.lab.lm import GPT, Config


@pytest.fixture(scope="module")
def gpt():
    with torch.device("meta"):
        return GPT(Config.paper())


def names(model, where=None):
    return [matrix.name for matrix in select(model, where).matrices]


def test_the_papers_model(gpt):
    found = {matrix.name: matrix.shape for matrix in select(gpt).matrices}
    assert found["blocks.10.attn.qkv_w.v"] == (768, 768)  # the matrix of the paper's figure
    assert found["blocks.7.mlp.c_fc.weight"] == (3072, 768)
    assert len(found) == 11 * 4 + 12 * 2
    assert set(select(gpt).left_out) == {
        "embed.weight",
        "lm_head.weight",
        *(f"value_embeds.{i}.weight" for i in range(3)),
    }


def test_patterns(gpt):
    assert names(gpt, "blocks.1?.attn.qkv_w.v") == ["blocks.10.attn.qkv_w.v", "blocks.11.attn.qkv_w.v"]
    assert names(gpt, "blocks.3.attn.qkv_w") == [f"blocks.3.attn.qkv_w.{part}" for part in "qkv"]  # by the parameter
    assert names(gpt, ["lm_head.weight", "blocks.0.mlp.*", "*.c_fc.weight"])[:2] == [
        "blocks.0.mlp.c_fc.weight",  # in the model's order, once
        "blocks.0.mlp.c_proj.weight",
    ]
    assert "embed.weight" in names(gpt, "*")


def test_heads(gpt):
    found = select(gpt, "blocks.10.attn.qkv_w.v.head*").matrices
    assert [matrix.name.rpartition(".")[2] for matrix in found] == [f"head{i}" for i in range(6)]
    assert {matrix.shape for matrix in found} == {(128, 768)}
    assert names(gpt, "blocks.10.attn.qkv_w.?.head5") == [f"blocks.10.attn.qkv_w.{part}.head5" for part in "qkv"]
    with pytest.raises(ValueError, match="where matches no matrix"):
        select(gpt, "*.mlp.c_fc.weight.head*")


def test_a_slice_is_the_right_part():
    model = GPT(Config.tiny())
    p = model.blocks[1].attn.qkv_w
    (whole,) = select(model, "blocks.1.attn.qkv_w.k").matrices
    assert torch.equal(whole.of(p), p[1])
    second = select(model, "blocks.1.attn.qkv_w.k.head*").matrices[1]
    assert torch.equal(second.of(p), p[1, 16:])


def test_a_fused_weight_and_a_transposed_one():
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=97, n_positions=16, n_embd=24, n_layer=1, n_head=2))
    found = {matrix.name: matrix for matrix in select(model).matrices}
    value = found["transformer.h.0.attn.c_attn.weight.v"]
    weight = model.transformer.h[0].attn.c_attn.weight  # (in, 3 out)
    assert torch.equal(value.of(weight), weight[:, 48:].T)
    assert found["transformer.h.0.mlp.c_fc.weight"].shape == (96, 24)
    assert len(select(model, "*.c_attn.weight.q.head*").matrices) == 2


def test_vectors_and_thin_matrices_are_none():
    model = nn.Sequential(nn.Linear(8, 1), nn.LayerNorm(8), nn.Linear(8, 8, bias=False))
    assert names(model) == ["2.weight"]


def test_nothing_to_look_at():
    with pytest.raises(ValueError, match=r"LayerNorm has no hidden matrix that needs a gradient: name others"):
        select(nn.LayerNorm(4))
    with pytest.raises(ValueError, match=r"\(1 matrices are frozen\)"):
        select(nn.Linear(4, 4).requires_grad_(False))
    with pytest.raises(ValueError, match=r"got \['blocks.0.atn.qkv_w.v'\]: there are .* such as blocks.0.attn.qkv_w.v"):
        select(GPT(Config.tiny()), "blocks.0.atn.qkv_w.v")
