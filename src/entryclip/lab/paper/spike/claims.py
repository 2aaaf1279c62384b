"""How much the corrupted batches raise the loss, and whether a clip makes it less, over common seeds."""

import math
from collections.abc import Sequence

from ...engine.study import Claim, Row
from ..holm import holm
from ..intervals import LEVEL, nats, paired_p
from ..lm_methods import METHOD_NAMES
from ..spike_score import DEVIATIONS
from .replays import CORRUPTION_NAMES, Comparison, comparisons


def claims(rows: Sequence[Row]) -> list[Claim]:
    """For each corruption and optimizer: the loss rises, and each clip makes it rise less.

    The comparisons of clips are judged together: Student's test of paired seeds, corrected for their number (`holm`).
    """
    found = comparisons(rows)
    clipped = [each for each in found if each.method != each.base]
    raw = [paired_p(each.differences) for each in clipped]
    tested = zip(clipped, raw, holm(raw), strict=True)
    judged = iter([_makes_it_less(each, p, adjusted, len(raw)) for each, p, adjusted in tested])
    return [_rises(each) if each.method == each.base else next(judged) for each in found]


def _rises(plain: Comparison) -> Claim:
    rise = plain.rise()
    return Claim(
        f"{_where(plain)}: the loss is higher after the corrupted batches",
        f"{nats(rise)} nats, ten clean steps after less ten before ({_seeds(plain)}); {_scores(plain)}",
        rise.low > 0,
    )


def _makes_it_less(clipped: Comparison, p: float, adjusted: float, tested: int) -> Claim:
    less = clipped.less_plain()
    chance = "not tested" if math.isnan(p) else f"p = {p:.2g}"
    return Claim(
        f"{_where(clipped)}: the rise is less than with {METHOD_NAMES[clipped.base]} alone",
        f"rise {clipped.rise().value:+.4f}, less that without a clip {nats(less)} ({_seeds(clipped)}; {chance}, Holm "
        f"over {tested} such comparisons {adjusted:.2g}); {_scores(clipped)}",
        less.value < 0 and adjusted < 1 - LEVEL,
    )


def _where(comparison: Comparison) -> str:
    return f"{CORRUPTION_NAMES[comparison.corruption]}, {METHOD_NAMES[comparison.method]}"


def _seeds(comparison: Comparison) -> str:
    count = len(comparison.replays)
    return f"{count} seed" + ("s" if count > 1 else ", so no interval")


def _scores(comparison: Comparison) -> str:
    scores = " and ".join(f"{comparison.score(k):.1f} % at {k:g}" for k in DEVIATIONS)
    return f"spike score {scores} standard deviations"
