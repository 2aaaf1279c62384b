"""Every tuned method in a line."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from .savings import curves, difference, saving
from .verdicts import BASELINES, NAMES, nats, percent

Row = dict[str, Any]


def tables(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """By caption."""
    rows = list(rows)
    found, settings = curves(rows), {row["method"]: row for row in rows if row["stage"] == "report"}
    lines = []
    for method, each in found.items():
        line = {
            "method": NAMES[method],
            "learning rate": f"{settings[method]['lr']:g}",
            "level": settings[method]["level"],
        }
        spread = f" ± {each.final.std(ddof=1):.4f}" if len(each.seeds) > 1 else ""
        line |= {"seeds": len(each.seeds), "final loss": f"{each.final.mean():.4f}{spread}"}
        baseline = found.get(BASELINES.get(method, ""))
        line |= {"less the baseline's": "", "tokens saved": ""} if baseline is None else _against(baseline, each)
        lines.append({**line, "seconds": f"{np.median(each.seconds):.0f}"})
    caption = (
        "Tuned methods on seeds they were not tuned on: mean final validation loss ± standard deviation over seeds; "
        "difference and tokens saved against AdamW or Muon without clipping, with 95 % intervals over paired seeds; "
        "median seconds of training, on a shared machine"
    )
    return {caption: lines} if lines else {}


def _against(baseline: Any, method: Any) -> Row:
    return {
        "less the baseline's": nats(difference(baseline, method)),
        "tokens saved": percent(saving(baseline, method)),
    }
