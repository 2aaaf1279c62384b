"""Does the error of the entries bound the error of sigma_1, and how tightly? (prop:spectral_to_mse and its remark)

For an entry-wise operator phi and Delta = phi(G + E) - G, the proposition says

    E |sigma_1(phi(G + E)) - sigma_1(G)|^2 <= sum_ij E (phi(G_ij + E_ij) - G_ij)^2       Eq. spectral_mse

up to a remainder that Weyl's inequality makes superfluous. The remark says when the bound is tight, by R-hat of Delta.
Far below 1 (Delta along u v^T) the bound is tight; far above 1 (spikes, which clipping removes) it is loose, yet
useful; near 1 it is loose and of no use. The study measures both sides for aligned noise, Gaussian noise, one spike so
small that the first-order expansion holds, and spikes so large that one takes over sigma_1, over the thresholds of hard
clipping and smooth shrinkage.
"""

from ...engine.study import Study
from . import study
from .claims import claims
from .figures import CAPTIONS, figures

STUDY = Study(
    name="spectral-mse",
    title="From entry-wise to spectral error",
    config=study.SpectralMseConfig,
    run_unit=study.run_unit,
    figures=figures,
    captions=CAPTIONS,
    claims=claims,
    row_modules=(study,),
)
