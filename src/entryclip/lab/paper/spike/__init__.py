"""A loss spike, replayed from one checkpoint under each clip."""

from ...engine.study import Study
from ..shards import shards
from . import study
from .claims import claims
from .figures import CAPTIONS, figures

STUDY = Study(
    name="spike",
    title="A loss spike, replayed under each clip",
    config=study.SpikeConfig,
    run_unit=study.run_unit,
    figures=figures,
    captions=CAPTIONS,
    claims=claims,
    row_modules=(study,),
    data=shards,
)
