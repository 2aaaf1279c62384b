"""Can entry-wise clipping give spectral control? Five clips under four kinds of noise of the same spectral norm.

The signal G has one strong direction. The noise of each kind is scaled so that its median spectral norm is a multiple
of sigma_1(G). Every clip gets the threshold with the least median error of sigma_1, which nobody knows in practice.

The error of sigma_1 alone is no test, since a clip of the norm can put sigma_1 anywhere. So the study also measures how
much of G's top direction is left in the leading singular space of the result: all singular values within 1 % of the
largest. A spectral clip makes many of them equal, so the dimension of that space is given, too. Last comes the time of
a call.
"""

from ...engine.study import Study
from . import study
from .claims import claims
from .figures import CAPTIONS, figures

STUDY = Study(
    name="spectral-control",
    title="Spectral control by clipping",
    config=study.SpectralControlConfig,
    run_unit=study.run_unit,
    figures=figures,
    captions=CAPTIONS,
    claims=claims,
    row_modules=(study,),
)
