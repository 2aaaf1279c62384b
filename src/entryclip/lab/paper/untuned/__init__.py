"""The paper's regression with `auto()`, which has no threshold to tune, beside the paper's clips with theirs tuned.

The seeds were used for nothing else: neither for the choice of `auto()`'s constants nor in the study `regression`.
"""

from ...engine.study import Study
from . import study
from .claims import claims
from .figures import CAPTIONS, figures

STUDY = Study(
    name="untuned",
    title="Regression without a threshold to tune",
    config=study.UntunedConfig,
    units=study.units,
    run_unit=study.run_unit,
    figures=figures,
    captions=CAPTIONS,
    claims=claims,
    row_modules=(study,),
)
