"""What the paper's text says of the regression study, and what the docs add, with the numbers measured."""

import itertools
import math
from collections.abc import Iterable, Sequence

from ...engine.study import Claim, Row
from .results import BestLosses, RegressionResults
from .subspace_claims import subspace_claims

_CLIPS = ("hard", "smooth")
_NAMES = {"post": "GD", "pre": "spectral GD"}


def claims(rows: Sequence[Row]) -> list[Claim]:
    """The paper's claims at each size, then those beyond it. "Converges": the loss falls below half of its start."""
    results = RegressionResults(rows)
    found = [claim for d in results.sizes() for claim in _claims_of_paper(results, d)]
    return found + (_claims_beyond(results) if results.levels("free") else [])


def _claims_of_paper(results: RegressionResults, d: int) -> list[Claim]:
    by_stage = {stage: results.paper(stage, d) for stage in results.stages()}
    found = []
    if descent := by_stage.get("post"):
        found += [_plain_descent_fails(descent), _clipped_descent_converges(descent)]
    if spectral := by_stage.get("pre"):
        found += [_spectral_descent_converges(spectral), _speedup_grows(spectral)]
    both = list(by_stage.values())
    found += [_gains_over_standing_still(both), _smooth_beats_hard(both), _parity_without_contamination(both)]
    return found + [claim for stage in by_stage for claim in subspace_claims(results, d, stage)]


def _where(losses: BestLosses) -> str:
    """The size and the length of the runs: some claims depend on both."""
    return f"d = {losses.d}, {losses.results.length()}"


def _plain_descent_fails(descent: BestLosses) -> Claim:
    shares = {alpha: descent.share("none", alpha) for alpha in descent.levels}
    fails = all(share > 0.5 for alpha, share in shares.items() if alpha >= 1e-2)
    return Claim(
        f"{_where(descent)}: GD without clipping fails from alpha = .01 on",
        f"final over first loss: {_by_alpha(shares, descent.levels)}",
        fails and shares[0.0] < 0.5,
    )


def _clipped_descent_converges(descent: BestLosses) -> Claim:
    worst = {clip: max(descent.share(clip, alpha) for alpha in descent.levels) for clip in _CLIPS}
    return Claim(
        f"{_where(descent)}: GD with either clip converges at every alpha",
        f"worst: hard {worst['hard']:.2g}, smooth {worst['smooth']:.2g} of the first loss",
        max(worst.values()) < 0.5,
    )


def _spectral_descent_converges(spectral: BestLosses) -> Claim:
    shares = {alpha: spectral.share("none", alpha) for alpha in spectral.levels}
    return Claim(
        f"{_where(spectral)}: spectral GD converges at every alpha without clipping",
        f"final over first loss: {_by_alpha(shares, _heavy(spectral.levels))}",
        max(shares.values()) < 0.5,
    )


def _speedup_grows(spectral: BestLosses) -> Claim:
    """Above 5 % from .01 on, and nowhere falling by more than 2 % from one alpha to the next."""
    gains = {clip: [spectral.speedup(clip, alpha) for alpha in spectral.levels] for clip in _CLIPS}
    begins = [
        gain > 1.05 for each in gains.values() for a, gain in zip(spectral.levels, each, strict=True) if a >= 1e-2
    ]
    grows = [gain <= following * 1.02 for each in gains.values() for gain, following in itertools.pairwise(each)]
    return Claim(
        f"{_where(spectral)}: pre-clipping's speedup begins at alpha = .01 and grows with alpha",
        "; ".join(f"{clip} {_listed(each)}" for clip, each in gains.items()),
        all(begins) and all(grows),
    )


def _gains_over_standing_still(both: Sequence[BestLosses]) -> Claim:
    """A run without clipping may end far above its start; there the honest comparison is with not moving at all."""
    gains = {
        (each.stage, clip): {a: each.speedup_over_still(clip, a) for a in each.levels if a >= 1e-2}
        for each in both
        for clip in _CLIPS
    }
    parts = [
        f"{_NAMES[stage]}, {clip} {', '.join(f'{gain:.3g} at {a:g}' for a, gain in by_alpha.items())}"
        for (stage, clip), by_alpha in gains.items()
    ]
    return Claim(
        f"{_where(both[0])}: from alpha = .01 on both clips halve the loss of no clipping and of standing still",
        f"lower of the two over the loss with the clip: {'; '.join(parts)}",
        all(gain > 2 for by_alpha in gains.values() for gain in by_alpha.values()),
    )


def _smooth_beats_hard(both: Sequence[BestLosses]) -> Claim:
    leads = {each.stage: [each.best("hard", a) / each.best("smooth", a) for a in _heavy(each.levels)] for each in both}
    return Claim(
        f"{_where(both[0])}: smooth shrinkage beats hard clipping from alpha = .5 on",
        "; ".join(f"{stage}: hard / smooth {_listed(lead)}" for stage, lead in leads.items()),
        all(ratio > 1 for lead in leads.values() for ratio in lead),
    )


def _parity_without_contamination(both: Sequence[BestLosses]) -> Claim:
    gains = {(clip, each.stage): each.speedup(clip, 0.0) for each in both for clip in _CLIPS}
    return Claim(
        f"{_where(both[0])}: near parity at alpha = 0",
        "speedups " + ", ".join(f"{clip} {stage} {gain:.2f}" for (clip, stage), gain in gains.items()),
        all(0.9 < gain < 1.1 for gain in gains.values()),
    )


def _claims_beyond(results: RegressionResults) -> list[Claim]:
    """Gradient descent with any threshold, the first size, at alpha >= .5; and noise that no entry stands out of."""
    free = results.free("post", "contamination")
    found = [
        _lead_goes_with_free_thresholds(results.paper("post", results.sizes()[0]), free),
        _clips_come_near_the_optimum(free),
        _clips_in_use_do_worse(free),
    ]
    return found + ([_no_help_under_other_noise(results)] if results.other_noises() else [])


def _lead_goes_with_free_thresholds(grid: BestLosses, free: BestLosses) -> Claim:
    levels = [alpha for alpha in _heavy(free.levels) if alpha in grid.levels]
    on_grid = [grid.best("hard", alpha) / grid.best("smooth", alpha) for alpha in levels]
    freely = [free.best("hard", alpha) / free.best("smooth", alpha) for alpha in levels]
    return Claim(
        f"{_where(free)}: smooth's lead over hard from alpha = .5 on mostly goes when both choose any threshold (GD)",
        f"hard / smooth {_listed(on_grid)} on the paper's grid, {_listed(freely)} freely",
        all(abs(f - 1) < 0.5 * abs(g - 1) for f, g in zip(freely, on_grid, strict=True)),
    )


def _clips_come_near_the_optimum(free: BestLosses) -> Claim:
    """The posterior mean is the best step, not the best run: its loss bounds no method's final loss."""
    levels = [alpha for alpha in _heavy(free.levels) if free.best("posterior", alpha) < math.inf]
    lost = [f"{alpha:g}" for alpha in _heavy(free.levels) if alpha not in levels]
    edges = [f"{alpha:g}" for alpha in levels if free.is_rate_at_edge("posterior", alpha)]
    ratios = [min(free.best(clip, alpha) for clip in _CLIPS) / free.best("posterior", alpha) for alpha in levels]
    notes = (
        [f"at the edge of its rates at alpha = {', '.join(edges)}"] if edges else ["its best rates inside their grid"]
    )
    notes += [f"no run of it that ended at alpha = {', '.join(lost)}"] if lost else []
    return Claim(
        f"{_where(free)}: with any threshold an entry-wise clip ends within 20 % of the one-step optimum, the "
        "posterior mean that is told the signal's size (GD)",
        f"best clip over it {_listed(ratios)} ({'; '.join(notes)})",
        all(ratio < 1.2 for ratio in ratios) and not edges and not lost,
    )


def _clips_in_use_do_worse(free: BestLosses) -> Claim:
    ratios = {
        method: max(free.best(method, alpha) / free.best("smooth", alpha) for alpha in _heavy(free.levels))
        for method in ("global", "agc", "spam")
    }
    return Claim(
        f"{_where(free)}: the clips in use today do not control heavy contamination as entry-wise ones do (GD, "
        "alpha >= .5)",
        "loss over smooth's: " + ", ".join(f"{method} up to {ratio:.3g}" for method, ratio in ratios.items()),
        all(ratio > 1.5 for ratio in ratios.values()),
    )


def _no_help_under_other_noise(results: RegressionResults) -> Claim:
    gains = {
        (noise, stage): max(results.free(stage, noise).speedup(clip, level) for clip in _CLIPS)
        for noise, level in results.other_noises()
        for stage in results.stages()
    }
    return Claim(
        f"{results.length()}: entry-wise clipping does not help under Gaussian and low-rank noise",
        "best speedup: " + ", ".join(f"{noise}, {stage} {gain:.2f}" for (noise, stage), gain in gains.items()),
        all(gain < 1.1 for gain in gains.values()),
    )


def _heavy(levels: Iterable[float]) -> list[float]:
    """The levels of contamination from .5 on."""
    return [alpha for alpha in levels if alpha >= 0.5]


def _by_alpha(shares: dict[float, float], levels: Iterable[float]) -> str:
    return ", ".join(f"{shares[alpha]:.2g} at {alpha:g}" for alpha in levels)


def _listed(numbers: Iterable[float]) -> str:
    return ", ".join(f"{number:.2f}" for number in numbers)
