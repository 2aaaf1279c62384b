"""How often is the probe right? Layers with synthetic gradient noise, contaminated and clean, at 64 samples.

The study also shows what R-hat makes of these layers: with the probe's signal, a median of means with its noise from
the other half of the samples, and with the paper's, the plain mean of all samples.
"""

from ...engine.study import Study
from . import study
from .claims import claims, tables
from .figures import CAPTIONS, figures

STUDY = Study(
    name="probe-trust",
    title="How often the probe is right",
    config=study.ProbeTrustConfig,
    units=study.units,
    run_unit=study.run_unit,
    figures=figures,
    captions=CAPTIONS,
    claims=claims,
    tables=tables,
    row_modules=(study,),
)
