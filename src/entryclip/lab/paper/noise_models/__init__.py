"""Which kinds of noise localize in single entries? The synthetic columns of `fig:noise_models`, and the rates of
`tab:localization-regimes`.

The paper does not give the gradient G of the synthetic columns. Here it is a Gaussian matrix plus one strong direction.
The paper's table states its rates for flat u, v "in expectation", where the mean of R does not exist. Here medians are
shown, for flat and for random directions.
"""

from ...engine.study import Study
from . import study
from .claims import claims
from .figures import CAPTIONS, figures

STUDY = Study(
    name="noise-models",
    title="Noise models and localization",
    config=study.NoiseModelsConfig,
    run_unit=study.run_unit,
    figures=figures,
    captions=CAPTIONS,
    claims=claims,
    row_modules=(study,),
)
