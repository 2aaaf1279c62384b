"""The noise of real gradients, and where clipping helps (`fig:noise_models`, `fig:r_hat`, `fig:corr`, `fig:hill`)."""

from ...engine.study import Study
from ..shards import shards
from . import study
from .claims import claims
from .figures import CAPTIONS, figures
from .tables import tables

STUDY = Study(
    name="noise-structure",
    title="The noise of real gradients, and where clipping helps",
    config=study.NoiseStructureConfig,
    units=study.units,
    next_units=study.next_units,
    run_unit=study.run_unit,
    figures=figures,
    captions=CAPTIONS,
    claims=claims,
    tables=tables,
    row_modules=(study,),
    data=shards,
)
