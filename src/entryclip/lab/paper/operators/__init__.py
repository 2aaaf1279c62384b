"""What do the entry-wise operators do to an entry? The paper's `fig:clipping_ops` and `fig:clipping-comparison`.

At c = tau/e the damping factors exp(-|y|/tau) and min(1, c/|y|) touch at |y| = tau, where both are 1/e. The paper adds
that smooth shrinkage damps more beyond tau. In fact it damps more at every other y, also below tau.
"""

from ...engine.study import Study
from . import claims, figures, study

STUDY = Study(
    name="operators",
    title="Entry-wise operators",
    config=study.OperatorsConfig,
    run_unit=study.run_unit,
    figures=figures.draw,
    captions=figures.CAPTIONS,
    claims=claims.check,
    row_modules=(study,),
)
