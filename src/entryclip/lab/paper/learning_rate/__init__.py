"""How must the learning rate change when AdamW's update is clipped? Final loss against learning rate, small network.

Smooth shrinkage also shrinks the many ordinary entries of the update, so part of its effect is that of a smaller
learning rate. The control for this is `preserve_rms=True`, which restores the update's root mean square. The method
"AdamW (torch)" is our AdamW without a clip, which equals torch's to the bit.
"""

from ...engine.study import Study
from . import study
from .claims import claims
from .figures import CAPTIONS, figures

STUDY = Study(
    name="learning-rate",
    title="Learning rate and clipping",
    config=study.LearningRateConfig,
    run_unit=study.run_unit,
    figures=figures,
    captions=CAPTIONS,
    claims=claims,
    row_modules=(study,),
)
