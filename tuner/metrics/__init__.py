"""Answers of ``/metrics`` and ``/v1/loads`` in, named readings out. Pure: asks no server."""

from tuner.metrics.snapshot import MetricsError, Snapshot, parse_metrics
from tuner.metrics.window import ReadingsWindow

__all__ = ["MetricsError", "ReadingsWindow", "Snapshot", "parse_metrics"]
