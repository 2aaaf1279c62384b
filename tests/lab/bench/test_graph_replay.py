"""The check of `entryclip bench` that replays CUDA graphs, with a recorder in place of a graph."""

import functools
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "optim"))  # for the recorder

from recorder import Elsewhere, Recorder

from entryclip.lab.bench import graph_replay
from entryclip.optim import stacked_clip


def recorded(step):
    """Record a step as a CUDA graph would capture it: everything that the step changed is put back."""
    optimizer = step.__self__
    state = [value for each in optimizer.state.values() for value in each.values()]
    changed = [p.data for group in optimizer.param_groups for p in group["params"]] + state
    before = [t.clone() for t in changed]
    with Recorder() as recorder:
        step()
    for t, value in zip(changed, before, strict=True):
        t.copy_(value)
    return recorder.replay


@pytest.mark.parametrize("right", [True, False])
def test_replays_are_compared(right, monkeypatch):
    """By a recorder in place of a CUDA graph, without the kernels, whose C code it cannot record."""
    plain = {name: make for name, make in graph_replay.OPTIMIZERS.items() if "fused" not in name}
    monkeypatch.setattr(graph_replay, "OPTIMIZERS", plain)
    if not right:  # the average of `Running` would stay as it was at the capture
        anew = functools.partial(stacked_clip.keep_memory_, in_place=False)
        monkeypatch.setattr(stacked_clip, "keep_memory_", lambda *arguments, in_place: anew(*arguments))
    with Elsewhere():
        found = graph_replay.replays_equal("cpu", recorded)
    assert found.held == right, found.detail
    assert not found.skipped
    assert ("SGD with Running by" in found.detail) != right


def test_without_a_gpu_it_is_skipped():
    found = graph_replay.replays_equal("cpu")
    assert found.held
    assert found.skipped
    assert found.detail == "skipped: there are no CUDA graphs on a cpu"
