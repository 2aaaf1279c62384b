"""The clips and the monitor in the training loops of other libraries.

Each module needs its library: `pip install 'entryclip[integrations]'`, and for optax `pip install 'entryclip[optax]'`.

lightning      ClipCallback and MonitorCallback for a Lightning Trainer
optax          clip, adamw and muon as gradient transformations, for jax
transformers   Build, the optimizer of a Hugging Face Trainer; MonitorCallback and ClipReportCallback
"""
