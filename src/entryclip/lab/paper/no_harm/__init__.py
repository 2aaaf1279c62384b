"""Does `auto()` cost anything where there is nothing to clip? The language model at the unclipped methods' best rates.

The seeds were used for nothing else, neither for the choice of `auto()`'s constants nor for that of the rates.
"""

from ...engine.study import Study
from ..shards import shards
from . import study
from .claims import claims
from .figures import CAPTIONS, figures
from .tables import tables

STUDY = Study(
    name="no-harm",
    title="auto() where there is nothing to clip",
    config=study.NoHarmConfig,
    units=study.units,
    run_unit=study.run_unit,
    figures=figures,
    captions=CAPTIONS,
    claims=claims,
    tables=tables,
    row_modules=(study,),
    data=shards,
)
