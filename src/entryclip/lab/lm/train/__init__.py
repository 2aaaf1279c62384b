"""Training runs of the language model: settings, optimizers, the trainer, checkpoints and several processes."""

from ....lazy import lazy_attributes

__getattr__, __dir__ = lazy_attributes(
    __name__,
    [
        "checkpoint",
        "distributed",
        "divergence",
        "probe_inputs",
        "records",
        "run",
        "schedule",
        "settings",
        "tensorboard",
        "trainer",
        "training_data",
        "training_methods",
    ],
)
