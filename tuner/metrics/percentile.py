"""Percentiles of what a histogram gained between two looks."""

from __future__ import annotations

import math

from tuner.metrics.model import Spread
from tuner.metrics.snapshot import Histogram


def spread(old: Histogram, new: Histogram) -> Spread | None:
    """Median and 95th percentile (seconds) of the observations made between ``old`` and ``new``; None without any."""
    before = dict(old.buckets)
    gained: list[tuple[float, float]] = []
    highest = 0.0
    for bound, count in new.buckets:
        # Two processes write these counts: a scrape can catch one bucket a step ahead of the next.
        highest = max(highest, count - before.get(bound, 0.0))
        gained.append((bound, highest))
    if not gained or highest <= 0:
        return None
    return Spread(p50=_percentile(gained, 0.5), p95=_percentile(gained, 0.95), count=round(highest))


def _percentile(buckets: list[tuple[float, float]], share: float) -> float:
    """Linear within the bucket, as Prometheus' ``histogram_quantile``; in the open last one, its lower bound."""
    wanted = share * buckets[-1][1]
    lower, below = 0.0, 0.0
    for bound, count in buckets:
        if count >= wanted and count > below:
            if math.isinf(bound):
                return lower
            return lower + (bound - lower) * (wanted - below) / (count - below)
        lower, below = bound, count
    return lower
