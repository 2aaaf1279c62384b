"""The entry that stands out most in AdamW's update, and the entries around it."""

from collections.abc import Iterator

from ....clip import smooth
from ...engine.study import Row
from ...lm.train.trainer import Trainer
from ...lm.train.training_methods import make_optimizer


def largest_entry(trainer: Trainer, shown: int) -> Iterator[Row]:
    """Rows `entry`, as `clip_report` names it, and `matrix`, a square of at most `shown` rows around it."""
    watched = make_optimizer(trainer.model, "post-smooth")
    watched.load_state_dict(trainer.optimizer.state_dict())
    group = watched.param_groups[0]
    group["post"] = smooth(0.995)
    worst = watched.clip_report(1)[0]
    parameter = dict(zip(group["param_names"], group["params"], strict=True))[worst.name]
    state = watched.state[parameter]
    update = (state["exp_avg"] / (state["exp_avg_sq"].sqrt() + 1e-12)).reshape(-1, *parameter.shape[-2:])
    *batch, row, column = worst.place
    matrix = update[batch[0] if batch else 0].abs()
    top, left = (_start(place, size, shown) for place, size in zip((row, column), matrix.shape, strict=True))
    part = matrix[top : top + shown, left : left + shown] / matrix.quantile(0.995)
    place = list(worst.place)
    yield {"kind": "entry", "name": worst.name, "place": place, "multiple": worst.largest, "text": str(worst)}
    values = [[round(float(x), 4) for x in line] for line in part]
    yield {"kind": "matrix", "row": row - top, "column": column - left, "values": values}


def _start(place: int, size: int, shown: int) -> int:
    """The first index of a window of `shown` out of `size` around `place`."""
    return max(0, min(place - shown // 2, size - shown))
