"""Whether two measurements differ, as far as the data tell. Pure."""

from __future__ import annotations

import math

from tuner.metrics.model import Spread
from tuner.rounds.model import ChangeVerdict

#: Values of two rounds of the same settings differ by this share anyway.
NOISE = 0.05
#: Standard deviation of a median from round to round, beside what its own samples scatter.
_ROUND_TO_ROUND = 0.02
#: Samples that a percentile needs (MLPerf's rule for early stopping: 64 for p90, 130 for p95, 662 for p99; the same
#: rule gives 10 for the median).
SAMPLES_FOR = {"p50": 10, "p95": 130}

#: Standard errors of a percentile of n samples, in units of the distribution's standard deviation / sqrt(n), for a
#: normal shape: sqrt(p (1 - p)) / density at p.
_STANDARD_ERROR = {"p50": 1.2533, "p95": 2.1133}
#: p95 - p50 of a normal distribution in standard deviations.
_P95_SIGMAS = 1.6449
#: Differences below this many standard errors are not called a change.
_ERRORS = 2.0


def compare(old: float, new: float, *, lower_is_better: bool, band: float = 0.0) -> ChangeVerdict:
    """Better or worse when two values differ by more than 5 % of the old one and more than ``band``."""
    if abs(new - old) <= max(NOISE * abs(old), band):
        return ChangeVerdict.WITHIN_NOISE
    return ChangeVerdict.BETTER if (new < old) == lower_is_better else ChangeVerdict.WORSE


def compare_percentiles(old: Spread, new: Spread, which: str) -> ChangeVerdict:
    """Compares p50 or p95 of two latencies; with too few samples they cannot be compared.

    The band is two standard errors of the difference: of both samples, whose spread is taken from p95 - p50 (all
    that a histogram's window tells of it), and of 2 % from round to round.
    """
    if min(old.count, new.count) < SAMPLES_FOR[which]:
        return ChangeVerdict.NOT_COMPARABLE
    before, after = getattr(old, which), getattr(new, which)
    error = math.hypot(
        _standard_error(old, which), _standard_error(new, which), _ROUND_TO_ROUND * before, _ROUND_TO_ROUND * after
    )
    return compare(before, after, lower_is_better=True, band=_ERRORS * error)


def _standard_error(spread: Spread, which: str) -> float:
    sigma = max(0.0, spread.p95 - spread.p50) / _P95_SIGMAS
    return _STANDARD_ERROR[which] * sigma / math.sqrt(spread.count)
