"""Do the four algorithms, run as the theorems state them, stay below the theorems' bounds? (thm:post-hard-main, ...)

The problem is nonconvex, and every constant of the assumptions is known (see `problem.py`). The noise is the assumed
one, (1-alpha) N(0, sigma^2) + alpha Cauchy(gamma). Post-clipping clips one noisy gradient (eq:post-update-main);
pre-clipping clips each of N noisy gradients, averages them, and takes the matrix sign (eq:pre-update-main).
"""

from ...engine.study import Study
from . import study
from .claims import claims
from .figures import CAPTIONS, figures

STUDY = Study(
    name="convergence",
    title="Convergence of the four algorithms against the theorems' bounds",
    config=study.ConvergenceConfig,
    run_unit=study.run_unit,
    figures=figures,
    captions=CAPTIONS,
    claims=claims,
    row_modules=(study,),
)
