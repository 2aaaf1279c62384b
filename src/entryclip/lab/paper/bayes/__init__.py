"""How near do the entry-wise operators come to the Bayes estimator? (thm:main, prop:spectral_to_mse)

An entry x ~ N(0, sigma_x^2) is observed as y = x + e with contaminated noise e. Hard clipping and smooth shrinkage get
their best threshold and their best gain b, a factor on the output (in an optimizer: the learning rate). Nothing is
sampled; with phi the operator and m(y) = E[x | y] the Bayes estimator, quadrature gives

    E (b phi(y) - x)^2 = sigma_x^2 - 2 b E[m(y) phi(y)] + b^2 E[phi(y)^2],

so the best gain is E[m phi] / E[phi^2]. No estimator has a smaller mean squared error than m.
"""

from ...engine.study import Study
from . import study
from .claims import claims
from .figures import CAPTIONS, figures

STUDY = Study(
    name="bayes",
    title="Entry-wise operators against the Bayes estimator",
    config=study.BayesConfig,
    run_unit=study.run_unit,
    figures=figures,
    captions=CAPTIONS,
    claims=claims,
    row_modules=(study,),
)
