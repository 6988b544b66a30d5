"""Whether two measurements differ, as far as the data tell. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from tuner.measure.model import Stat
from tuner.measure.stats import SAMPLES_FOR
from tuner.metrics.model import Spread
from tuner.rounds.model import ChangeVerdict

#: Repeats (or rounds of an A/B) whose scatter says anything.
FEWEST_REPEATS = 3
#: Values of two rounds of the same settings differ by this share anyway.
NOISE = 0.05
#: Standard deviation of a median from round to round, beside what its own samples scatter.
_ROUND_TO_ROUND = 0.02
#: Standard errors of a percentile of n samples, in units of the distribution's standard deviation / sqrt(n), for a
#: normal shape: sqrt(p (1 - p)) / density at p.
_STANDARD_ERROR = {"p50": 1.2533, "p95": 2.1133}
#: p95 - p50 of a normal distribution in standard deviations.
_P95_SIGMAS = 1.6449
#: Differences below this many standard errors are not called a change.
_ERRORS = 2.0


def compare(old: float, new: float, *, lower_is_better: bool, band: float = 0.0) -> ChangeVerdict:
    """Better or worse when two values differ by more than 5 % of the old one and more than ``band``."""
    return _beyond(old, new, max(NOISE * abs(old), band), lower_is_better=lower_is_better)


def compare_measured(old: Stat, new: Stat, which: str) -> ChangeVerdict:
    """Compares a percentile ("p50", "p90", "p95", "p99") of two loads; lower is better.

    The band is two standard errors of the difference: of both samples, as their ranks and repeats show it, and of
    2 % from round to round, which no number of samples makes smaller.
    """
    before, after = getattr(old, which), getattr(new, which)
    if before is None or after is None or which not in old.errors or which not in new.errors:
        return ChangeVerdict.NOT_COMPARABLE
    # Measured on the smaller: a change counts the same whichever round is the earlier one.
    level = _ROUND_TO_ROUND * min(before, after) * math.sqrt(2)
    band = _ERRORS * math.hypot(level, old.errors[which], new.errors[which])
    return _beyond(before, after, max(NOISE * min(before, after), band), lower_is_better=True)


def compare_rates(old: Sequence[float], new: Sequence[float]) -> ChangeVerdict:
    """Compares rates of some repeats each, by their medians; higher is better. Needs three repeats."""
    if min(len(old), len(new)) < FEWEST_REPEATS:
        return ChangeVerdict.NOT_COMPARABLE
    before, after = statistics.median(old), statistics.median(new)
    level = _ROUND_TO_ROUND * min(before, after) * math.sqrt(2)
    scatter = [statistics.stdev(rates) / math.sqrt(len(rates)) for rates in (old, new)]
    band = _ERRORS * math.hypot(level, *scatter)
    return _beyond(before, after, max(NOISE * min(before, after), band), lower_is_better=False)


def compare_rounds(old: Sequence[float], new: Sequence[float], *, lower_is_better: bool) -> ChangeVerdict:
    """Compares one number of several rounds each (an A/B in alternating order), by their medians.

    The scatter from round to round is what the rounds show, and at least 2 %.
    """
    if min(len(old), len(new)) < FEWEST_REPEATS:
        return ChangeVerdict.NOT_COMPARABLE
    before, after = statistics.median(old), statistics.median(new)
    errors = [
        max(statistics.stdev(values), _ROUND_TO_ROUND * min(before, after)) / math.sqrt(len(values))
        for values in (old, new)
    ]
    return _beyond(before, after, _ERRORS * math.hypot(*errors), lower_is_better=lower_is_better)


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


def _beyond(old: float, new: float, band: float, *, lower_is_better: bool) -> ChangeVerdict:
    if abs(new - old) <= band:
        return ChangeVerdict.WITHIN_NOISE
    return ChangeVerdict.BETTER if (new < old) == lower_is_better else ChangeVerdict.WORSE


def _standard_error(spread: Spread, which: str) -> float:
    sigma = max(0.0, spread.p95 - spread.p50) / _P95_SIGMAS
    return _STANDARD_ERROR[which] * sigma / math.sqrt(spread.count)
