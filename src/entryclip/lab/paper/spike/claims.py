"""How much the corrupted batches raise the loss, with and without a clip."""

from collections.abc import Sequence

from ...engine.study import Claim, Row
from .study import SPIKE_METHODS

_WATCHED = 10  # clean steps on either side


def claims(rows: Sequence[Row]) -> list[Claim]:
    """AdamW's loss rises, and each clip makes it rise less."""
    last = max(row["step"] for row in rows if row["kind"] == "loss" and row["corrupted"])
    rise = {method: _rise(rows, method, last) for method in SPIKE_METHODS}
    bare = rise["adamw"]
    words = f"{bare:+.3f} nats above the ten steps before, mean of the ten clean steps after"
    return [Claim("Corrupted batches leave AdamW's loss higher", words, bare > 0.1)] + [
        Claim(
            f"{method} makes it less",
            f"{rise[method]:+.3f} nats against {bare:+.3f} without",
            rise[method] < bare - 0.01,
        )
        for method in ("post-smooth", "post-hard", "adamw-norm", "post-smooth-rms")
    ]


def _rise(rows: Sequence[Row], method: str, last: int) -> float:
    """The mean loss of the steps after the corrupted ones less that of the steps before; inf if training broke off."""
    losses = {row["step"]: row["loss"] for row in rows if row["kind"] == "loss" and row["method"] == method}
    after = [losses.get(step) for step in range(last + 1, last + 1 + _WATCHED)]
    if None in after:
        return float("inf")
    before = [losses[step] for step in range(-_WATCHED, 0)]
    return float(sum(loss for loss in after if loss is not None) - sum(before)) / _WATCHED
