"""Where the results of the full studies are, for the sections of the page that show a quick version."""

import os
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

_CLONE = Path(__file__).parents[4]  # the repository, where the package is used from a clone of it
_PAGES = {  # by study: the page of the documentation that quotes its full results
    **dict.fromkeys(("learning-rate",), "optimizers"),
    **dict.fromkeys(("bayes", "looseness", "convergence"), "noise-and-theory"),
    **dict.fromkeys(("noise-models", "spectral-mse", "spectral-control", "tails"), "diagnostics"),
    **dict.fromkeys(("probe-trust", "noise-structure"), "probe"),
    "scales": "scales",
    "regression": "regression",
    **dict.fromkeys(("untuned", "no-harm", "dose-response"), "auto"),
    **dict.fromkeys(("pretraining", "rate-grid", "spike"), "pretraining"),
}


class FullResults(NamedTuple):
    """A page of the documentation, and a link to it from the report."""

    name: str
    link: str


def find_full_results(study: str, results: Path) -> FullResults | None:
    """The page with a study's full results, linked from a report in `results`; None outside of a clone."""
    if study not in _PAGES or not (path := _CLONE / "docs" / f"{_PAGES[study]}.md").is_file():
        return None
    return FullResults(f"docs/{path.name}", quote(os.fsencode(os.path.relpath(path, results.resolve()))))
