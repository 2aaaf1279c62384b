"""Callbacks for other people's training loops; each module needs its package (`pip install 'entryclip[integrations]'`).

lightning      MonitorCallback for a Lightning Trainer
transformers   MonitorCallback for a Hugging Face Trainer
"""
