"""The architecture of the paper's language model."""
