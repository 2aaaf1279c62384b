"""Callbacks for the training loops of other libraries.

Each module needs its library: `pip install 'entryclip[integrations]'`.

lightning      MonitorCallback for a Lightning Trainer
transformers   MonitorCallback for a Hugging Face Trainer
"""
