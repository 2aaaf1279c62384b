"""From which share of corrupted gradient entries on does a clip pay, and does `auto()` keep up with the best of them?

It is the positive control of the study `no-harm`: the same model and rates, with something to clip.
"""

from ...engine.study import Study
from ..shards import shards
from . import study
from .claims import claims
from .figures import CAPTIONS, figures
from .tables import tables

STUDY = Study(
    name="dose-response",
    title="Loss against the share of corrupted gradient entries",
    config=study.DoseConfig,
    units=study.units,
    run_unit=study.run_unit,
    figures=figures,
    captions=CAPTIONS,
    claims=claims,
    tables=tables,
    row_modules=(study,),
    data=shards,
)
