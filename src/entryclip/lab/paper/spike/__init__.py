"""A loss spike, replayed from one checkpoint under each clip."""

from ...engine.study import Study
from ..shards import shards
from . import study
from .claims import claims
from .figures import CAPTIONS, figures
from .tables import tables

STUDY = Study(
    name="spike",
    title="A loss spike, replayed under each clip",
    config=study.SpikeConfig,
    units=study.units,
    run_unit=study.run_unit,
    figures=figures,
    captions=CAPTIONS,
    claims=claims,
    tables=tables,
    row_modules=(study,),
    data=shards,
)
