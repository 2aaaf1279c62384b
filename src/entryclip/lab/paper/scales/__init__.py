"""Are the entries of gradients heavy-tailed, or do rows and columns differ in scale?

An entry-wise clip gains something on noise with heavy-tailed entries. Entries that are Gaussian, in rows and columns of
different scale, look heavy-tailed when they are pooled. The study tells the two apart: it measures what the best clip
gains on gradients as they are, and after rows and columns were divided by their scales.
"""

from ...engine.study import Study
from . import study
from .claims import claims
from .figures import CAPTIONS, figures
from .tables import tables

STUDY = Study(
    name="scales",
    title="Heavy-tailed entries, or rows and columns of different scale",
    config=study.ScalesConfig,
    units=study.units,
    run_unit=study.run_unit,
    figures=figures,
    captions=CAPTIONS,
    claims=claims,
    tables=tables,
    row_modules=(study,),
    data=study.corpora,
)
