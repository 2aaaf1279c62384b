"""How often is `tail_index` right? Laws with a known tail and their 5 % mixtures, at the size of a weight matrix.

A mixture has 5 % of its entries from a law and the rest from a standard Gaussian. The law has the same scale as the
Gaussian, or 3 times its scale. At the same scale the tail of the law begins only where few entries are left, which is
the hardest case.
"""

from ...engine.study import Study
from . import study
from .claims import claims
from .figures import CAPTIONS, figures

STUDY = Study(
    name="tails",
    title="Tail index",
    config=study.TailsConfig,
    run_unit=study.run_unit,
    figures=figures,
    captions=CAPTIONS,
    claims=claims,
    row_modules=(study,),
)
