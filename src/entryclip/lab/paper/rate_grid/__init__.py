"""Methods over a fixed grid of learning rates and warm-ups: is anything left of a gain at the baseline's own best?"""

from ...engine.study import Study
from . import study
from .claims import claims
from .figures import CAPTIONS, figures
from .tables import tables

STUDY = Study(
    name="rate-grid",
    title="Methods over a grid of learning rates and warm-ups",
    config=study.RateGridConfig,
    units=study.units,
    next_units=study.next_units,
    asked_early=True,
    run_unit=study.run_unit,
    figures=figures,
    captions=CAPTIONS,
    claims=claims,
    tables=tables,
    row_modules=(study,),
    data=study.data,
)
