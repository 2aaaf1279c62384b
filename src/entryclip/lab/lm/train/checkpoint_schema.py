"""The schema of a checkpoint's manifest: what its values are, and how they must agree with each other."""

from typing import Any

from ...engine.schema import (
    by_name,
    exactly,
    fields,
    flag,
    listed,
    number,
    one_of,
    optional,
    require,
    sha256,
    text,
    whole,
)
from ..data.manifest import LARGEST_VOCABULARY
from .training_methods import TRAINING_METHODS

_MOST = 2**31  # no count of a run comes near
_SETTINGS = fields(
    {
        "model": text(),
        "method": one_of(*TRAINING_METHODS),
        **dict.fromkeys(("steps", "sequences", "length"), whole(1, _MOST)),
        "seed": whole(0),
    }
)
_SIZES = {
    "vocabulary": whole(1, LARGEST_VOCABULARY),
    "separator": whole(0, LARGEST_VOCABULARY - 1),
    "layers": whole(2, 1024),
    **dict.fromkeys(("width", "heads", "head_size"), whole(1, 2**16)),
    "value_tables": whole(0, 1024),
    **dict.fromkeys(("without_attention", "long_layers"), listed(whole(0, 1024))),
    **dict.fromkeys(("block", "window"), whole(1, _MOST)),
    "attention_scale": number(0),
}
_ROW = fields(
    {
        "step": whole(0, _MOST),
        "tokens": whole(),
        "loss": optional(number()),
        "val_loss": number(),
        "lr": number(0),
    }
)
_BATCHES = fields(
    {
        **dict.fromkeys(("position", "sequences", "length"), whole(0, _MOST)),
        "seed": optional(whole()),
        "data": text(),
    }
)
_MANIFEST = fields(
    {
        "format": exactly(1),
        "step": whole(0, _MOST),
        "sha256": fields({"model.safetensors": sha256(), "state.pt": sha256()}),
        "settings": _SETTINGS,
        "versions": by_name(text()),
        "code": text(),
        "config": fields(_SIZES),
        "data": text(),
        **dict.fromkeys(("seconds", "optimizer_seconds"), number(0)),
        "times": listed(number(0)),
        "rows": listed(_ROW),
        "losses": listed(number()),
        "batches": _BATCHES,
    },
    {"tokenizer": text(), "window_is_full": flag},
)


def checkpoint_manifest(value: Any, field: str) -> None:
    """Accept the manifest of a checkpoint whose step, rows and position in the data belong together."""
    _MANIFEST(value, field)
    step, steps = value["step"], value["settings"]["steps"]
    require(step <= steps, "step", f"at most the {steps} steps of the run", step)
    require(value["batches"]["position"] == step, "batches.position", f"the step, {step}", value["batches"]["position"])
    reached = [row["step"] for row in value["rows"]]
    require(reached == sorted(set(reached)) and max(reached, default=0) <= step, "rows", f"up to step {step}", reached)
    require(len(value["times"]) == len(reached), "times", "one for each row", value["times"])
    extra = value["config"].keys() - _SIZES.keys()
    require(not extra, "config", "the sizes of a model", sorted(extra))
