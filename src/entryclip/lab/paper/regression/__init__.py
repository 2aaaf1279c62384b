"""Matrix regression under contaminated gradients: the paper's synthetic study (app:synthetic), and beyond it."""

from ...engine.study import Study
from . import study
from .claims import claims
from .figures import CAPTIONS, figures

STUDY = Study(
    name="regression",
    title="Regression with contaminated gradients",
    config=study.RegressionConfig,
    units=study.units,
    run_unit=study.run_unit,
    figures=figures,
    captions=CAPTIONS,
    claims=claims,
    row_modules=(study,),
)
