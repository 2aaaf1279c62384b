"""How often is the probe right? Layers with synthetic gradient noise, contaminated and clean, at 64 samples.

The study also measures R-hat of these layers in two ways. The probe takes a median of means over one half of the
samples as the signal, and the noise from the other half. The paper takes the plain mean of all samples as the signal.
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
