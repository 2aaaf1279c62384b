"""What the paper's text says of this experiment, and what the docs add, with the numbers measured."""

from collections.abc import Sequence
from typing import Any

from ...engine.study import Claim, Row
from .figures import STAGE_NAMES as STAGE
from .results import RegressionResults as Table


def claims(rows: Sequence[Row]) -> list[Claim]:
    """The paper's claims at each size, then those beyond it. "Converges": the loss falls below half of its start."""
    table = Table(rows)
    found = [claim for d in table.sizes() for claim in _of_paper(table, d)]
    return found + _beyond(table)


def _of_paper(table: Table, d: int) -> list[Claim]:
    levels = table.levels()
    some = [a for a in levels if a >= 1e-2]
    heavy = [a for a in levels if a >= 0.5]

    def loss(stage: str, method: str, alpha: float) -> float:
        return table.loss(part="paper", stage=stage, d=d, method=method, level=alpha)

    def share(stage: str, method: str, alpha: float) -> float:
        return loss(stage, method, alpha) / table.start(part="paper", stage=stage, d=d)

    def shares(stage: str, method: str, alphas: list[float]) -> str:
        return ", ".join(f"{share(stage, method, a):.2g} at {a:g}" for a in alphas)

    gains = {m: [table.speedup(m, part="paper", stage="pre", d=d, level=a) for a in levels] for m in ("hard", "smooth")}
    lead = {s: [loss(s, "hard", a) / loss(s, "smooth", a) for a in heavy] for s in STAGE}
    parity = {
        (s, m): table.speedup(m, part="paper", stage=s, d=d, level=0.0) for s in STAGE for m in ("hard", "smooth")
    }
    kept = {
        (m, a): table.spectrum(m, stage="post", d=d, level=a)
        for m in ("none", "hard", "smooth")
        for a in some
        if a < 0.5
    }
    return [
        Claim(
            f"d = {d}: GD without clipping fails from alpha = .01 on",
            f"final over first loss: {shares('post', 'none', levels[:3])}",
            all(share("post", "none", a) > 0.5 for a in some) and share("post", "none", 0.0) < 0.5,
        ),
        Claim(
            f"d = {d}: GD with either clip converges at every alpha",
            f"worst: hard {max(share('post', 'hard', a) for a in levels):.2g}, "
            f"smooth {max(share('post', 'smooth', a) for a in levels):.2g} of the first loss",
            all(share("post", m, a) < 0.5 for m in ("hard", "smooth") for a in levels),
        ),
        Claim(
            f"d = {d}: spectral GD converges at every alpha without clipping",
            f"final over first loss: {shares('pre', 'none', heavy)}",
            all(share("pre", "none", a) < 0.5 for a in levels),
        ),
        Claim(
            f"d = {d}: pre-clipping's speedup begins at alpha = .01 and grows with alpha",
            "; ".join(f"{m} {', '.join(f'{g:.2f}' for g in gains[m])}" for m in gains),
            all(g > 1.05 for m in gains for a, g in zip(levels, gains[m], strict=True) if a >= 1e-2)
            and all(gains[m][i] <= gains[m][i + 1] * 1.02 for m in gains for i in range(len(levels) - 1)),
        ),
        Claim(
            f"d = {d}: smooth shrinkage beats hard clipping from alpha = .5 on",
            "; ".join(f"{s}: hard / smooth {', '.join(f'{r:.2f}' for r in lead[s])}" for s in lead),
            all(r > 1 for s in lead for r in lead[s]),
        ),
        Claim(
            f"d = {d}: near parity at alpha = 0",
            "speedups " + ", ".join(f"{m} {s} {g:.2f}" for (s, m), g in parity.items()),
            all(0.9 < g < 1.1 for g in parity.values()),
        ),
        Claim(
            f"d = {d}: both clips bring back the spectrum and the leading subspace",
            "; ".join(
                f"alpha {a:g}: kept {kept['none', a]['kept']:.2f} without, {kept['hard', a]['kept']:.2f} hard, "
                f"{kept['smooth', a]['kept']:.2f} smooth"
                for a in some
                if a < 0.5
            ),
            all(kept[m, a]["kept"] > kept["none", a]["kept"] for m in ("hard", "smooth") for a in some if a < 0.5),
        ),
    ]


def _beyond(table: Table) -> list[Claim]:
    d = table.sizes()[0]
    heavy = [a for a in table.levels("free") if a >= 0.5]

    def paper(method: str, alpha: float) -> float:
        return table.loss(part="paper", stage="post", d=d, method=method, level=alpha)

    def free(method: str, alpha: float, **wanted: Any) -> float:
        at = {"part": "free", "stage": "post", "noise": "contamination", "level": alpha, **wanted}
        return min(table.loss(method=m, **at) for m in (method, f"{method}-median"))

    on_grid = [paper("hard", a) / paper("smooth", a) for a in heavy]
    freely = [free("hard", a) / free("smooth", a) for a in heavy]
    floor = [min(free("hard", a), free("smooth", a)) / free("posterior", a) for a in heavy]
    today = {m: max(free(m, a) / free("smooth", a) for a in heavy) for m in ("global", "agc", "spam")}
    other = {
        (stage, noise): free("none", level, stage=stage, noise=noise)
        / min(free(m, level, stage=stage, noise=noise) for m in ("hard", "smooth"))
        for noise, level in sorted({(r["noise"], r["level"]) for r in table.rows if r["noise"] != "contamination"})
        for stage in STAGE
    }
    return [
        Claim(
            "smooth's lead over hard from alpha = .5 on mostly goes when both choose any threshold (GD)",
            f"hard / smooth {_list(on_grid)} on the paper's grid, {_list(freely)} freely",
            all(abs(f - 1) < 0.5 * abs(g - 1) for f, g in zip(freely, on_grid, strict=True)),
        ),
        Claim(
            "with any threshold an entry-wise clip comes within 20 % of the exact posterior mean (GD)",
            f"best clip / floor {_list(floor)}",
            all(f < 1.2 for f in floor),
        ),
        Claim(
            "the clips in use today do not control heavy contamination as entry-wise ones do (GD, alpha >= .5)",
            "loss over smooth's: " + ", ".join(f"{m} up to {r:.3g}" for m, r in today.items()),
            all(r > 1.5 for r in today.values()),
        ),
        Claim(
            "entry-wise clipping does not help under Gaussian and low-rank noise",
            "best speedup: " + ", ".join(f"{noise}, {stage} {g:.2f}" for (stage, noise), g in other.items()),
            all(g < 1.1 for g in other.values()),
        ),
    ]


def _list(numbers: list[float]) -> str:
    return ", ".join(f"{number:.2f}" for number in numbers)
