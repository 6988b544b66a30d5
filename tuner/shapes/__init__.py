"""Shapes (config.json) of well-known models, for planning where the model folder is not at hand."""
