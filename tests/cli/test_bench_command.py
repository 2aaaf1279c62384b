"""`entryclip bench`: what a user with other hardware runs to see that it is right there."""

import json

import pytest
import torch

from entryclip.cli import main
from entryclip.cli.bench import limit_in_words
from entryclip.lab.bench import methods, proofs
from entryclip.lab.bench.parts import check_parts
from entryclip.lab.bench.timing import Result
from entryclip.lab.lm import GPT, Config
from entryclip.lab.paper.lm_methods import BASELINES


def test_proofs_hold_here_and_are_saved(tmp_path, capsys):
    file = tmp_path / "bench.json"
    assert main(["bench", "--quick", "--json", str(file)]) == 0
    saved = json.loads(file.read_text())
    assert [(proof["held"], proof["skipped"]) for proof in saved["proofs"]] == [*[(True, False)] * 9, (True, True)]
    assert saved["proofs"][-1]["detail"] == "skipped: there are no CUDA graphs on a cpu"
    assert saved["rows"] == []
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert last.startswith("entryclip ")
    assert "9 of 9 proofs hold; no times" in last


def test_a_wrong_quantile_is_found(monkeypatch):
    right = proofs.quantile_abs
    monkeypatch.setattr(proofs, "quantile_abs", lambda x, q, **more: right(x, q, **more) * (1 + 1e-6 * (q == 0.9)))
    assert proofs.quantiles_equal("cpu").held  # both sides are wrong alike: the host is the reference
    calls = iter(range(10**6))
    monkeypatch.setattr(proofs, "quantile_abs", lambda x, q, **more: right(x, q, **more) + (next(calls) == 100))
    found = proofs.quantiles_equal("cpu")
    assert not found.held
    assert "1 differ" in found.detail


def test_a_wrong_step_is_found(monkeypatch):
    original = proofs.AdamW

    def wrong(params, fused=False, **options):
        return original(params, **{**options, "weight_decay": 0.011 if fused else 0.01})

    monkeypatch.setattr(proofs, "AdamW", wrong)
    assert proofs.steps_equal("cpu", "plain", fused=False).held
    assert not proofs.steps_equal("cpu", "fused", fused=True).held
    assert not proofs.auto_agrees("cpu", "fused", fused=True).held


def test_a_gpu_that_is_not_there(capsys):
    if not torch.cuda.is_available():
        assert main(["bench", "--device", "cuda"]) == 2
        assert "torch sees no GPU here" in capsys.readouterr().err
    assert main(["bench", "--device", "tpu"]) == 2
    assert "--device must be one of cpu, cuda, got 'tpu'" in capsys.readouterr().err


def test_limits():
    assert Result("a", 1.0, 2.0, False, "").kept
    assert not Result("a", 1.0, 2.0, True, "").kept
    assert Result("a", 1e9, None, False, "").kept  # a measurement, of which nothing is promised
    limits = [Result("a", 1.0, limit, at_least, "") for limit, at_least in ((2.0, False), (3.5, True), (None, True))]
    assert [limit_in_words(each) for each in limits] == ["<= 2", ">= 3.5", "-"]


def test_every_method_of_the_tables_has_its_cost_measured(monkeypatch):
    monkeypatch.setattr(methods, "ROUNDS", 1)
    monkeypatch.setattr(methods, "stepper", lambda make: lambda: None)  # what a step does is another test's
    found = list(methods.run())
    assert {each.name for each in found} == {methods.cost_name(method) for method in BASELINES}
    assert "training step, spectra / adamw" in {each.name for each in found}  # it clips AdamW's update
    assert all(each.ratio > 0 and each.limit is None for each in found)


@pytest.mark.parametrize("method", ["muon", "zclip"])
def test_a_step_of_a_method_trains_the_model(method):
    torch.manual_seed(0)
    model = GPT(Config.tiny())
    optimizer = methods.fused(method, model)
    before = model.blocks[0].mlp.c_fc.weight.clone()
    tokens = torch.randint(0, 200, (2, 17))
    for _ in range(2):  # the map behind it starts at 0, so that its first gradient is 0
        optimizer.zero_grad()
        model(tokens[:, :-1], tokens[:, 1:]).backward()
        optimizer.step()
    assert not torch.equal(model.blocks[0].mlp.c_fc.weight, before)


def test_parts_by_name(tmp_path, capsys):
    file = tmp_path / "bench.json"
    main(["bench", "clip", "--json", str(file)])
    names = [row["name"] for row in json.loads(file.read_text())["rows"]]
    assert names[0] == "smooth(.995) over the paper's listing, 768 x 3072"
    assert len(names) == 3
    capsys.readouterr()
    assert main(["bench", "nonsense"]) == 2
    assert "unknown part 'nonsense': choose from steps, quantile" in capsys.readouterr().err
    with pytest.raises(ValueError, match="on a CPU only"):
        check_parts(("clip",), "cuda")
