"""What do the entry-wise operators do to an entry? The paper's `fig:clipping_ops` and `fig:clipping-comparison`.

At c = tau/e the damping factors exp(-|y|/tau) and min(1, c/|y|) touch at |y| = tau, where both are 1/e. The paper adds
that smooth shrinkage damps more beyond tau. In fact it damps more at every other y, also below tau.
"""

from ...engine.study import Study
from . import study
from .claims import claims
from .figures import CAPTIONS, figures

STUDY = Study(
    name="operators",
    title="Entry-wise operators",
    config=study.OperatorsConfig,
    run_unit=study.run_unit,
    figures=figures,
    captions=CAPTIONS,
    claims=claims,
    row_modules=(study,),
)
