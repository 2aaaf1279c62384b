"""Training runs of the language model: settings, the trainer, checkpoints and processes."""
