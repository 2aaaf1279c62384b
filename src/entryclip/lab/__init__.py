"""The laboratory: the engine that runs studies, the language model, the studies of the paper and the report page."""
