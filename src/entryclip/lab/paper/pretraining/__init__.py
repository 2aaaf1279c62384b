"""Language-model pretraining: how many tokens a clip saves (`fig:nano_gpt_result`, `fig:lr_sweep`)."""

from ...engine.study import Study
from ..shards import shards
from . import study
from .claims import claims
from .figures import CAPTIONS, figures
from .tables import tables

STUDY = Study(
    name="pretraining",
    title="Language-model pretraining: tokens saved by clipping",
    config=study.PretrainingConfig,
    units=study.units,
    next_units=study.next_units,
    asked_early=True,
    run_unit=study.run_unit,
    figures=figures,
    captions=CAPTIONS,
    claims=claims,
    tables=tables,
    row_modules=(study,),
    data=shards,
)
