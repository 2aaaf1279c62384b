"""How loose are the paper's bounds on one clipped entry? Relative bias and variance against their exact values.

The study evaluates `lem:hard-relative-bias-app`, `lem:smooth-relative-bias-app` and the two variance lemmas over the
threshold, beside quadrature. It also shows what the looseness costs each theorem: the theorem's rate over the rate that
the same descent lemma gives with the exact bias and variance.
"""

from ...engine.study import Study
from . import study
from .claims import claims
from .figures import CAPTIONS, figures

STUDY = Study(
    name="looseness",
    title="How loose the bounds are",
    config=study.LoosenessConfig,
    run_unit=study.run_unit,
    figures=figures,
    captions=CAPTIONS,
    claims=claims,
    row_modules=(study,),
)
