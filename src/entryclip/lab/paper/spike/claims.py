"""How much the corrupted batches raise the loss, and whether a clip makes it less, over common seeds."""

from collections.abc import Sequence

from ...engine.study import Claim, Row
from ..intervals import nats
from ..lm_methods import METHOD_NAMES
from .replays import CORRUPTION_NAMES, Comparison, comparisons
from .spike_score import DEVIATIONS


def claims(rows: Sequence[Row]) -> list[Claim]:
    """For each corruption and optimizer: the loss rises, and each clip makes it rise less, beyond the 95 % interval."""
    found = comparisons(rows)
    clipped = [each for each in found if each.method != each.base]
    return [_rises(each) if each.method == each.base else _makes_it_less(each, len(clipped)) for each in found]


def _rises(plain: Comparison) -> Claim:
    rise = plain.rise()
    return Claim(
        f"{_where(plain)}: the loss is higher after the corrupted batches",
        f"{nats(rise)} nats, ten clean steps after less ten before ({_seeds(plain)}); {_scores(plain)}",
        rise.low > 0,
    )


def _makes_it_less(clipped: Comparison, tested: int) -> Claim:
    less = clipped.less_plain()
    return Claim(
        f"{_where(clipped)}: the rise is less than with {METHOD_NAMES[clipped.base]} alone",
        f"rise {clipped.rise().value:+.4f}, less that without a clip {nats(less)} ({_seeds(clipped)}; one of {tested} "
        f"such comparisons); {_scores(clipped)}",
        less.high < 0,
    )


def _where(comparison: Comparison) -> str:
    return f"{CORRUPTION_NAMES[comparison.corruption]}, {METHOD_NAMES[comparison.method]}"


def _seeds(comparison: Comparison) -> str:
    count = len(comparison.replays)
    return f"{count} seed" + ("s" if count > 1 else ", so no interval")


def _scores(comparison: Comparison) -> str:
    scores = " and ".join(f"{comparison.score(k):.1f} % at {k:g}" for k in DEVIATIONS)
    return f"spike score {scores} standard deviations"
