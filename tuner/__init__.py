"""Tune a running SGLang server for hybrid models."""

__version__ = "0.1.0"
