"""Which kinds of noise are localized in single entries? (fig:noise_models, tab:localization-regimes)

The study draws the synthetic columns of the paper's figure and measures the rates of its table.

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
