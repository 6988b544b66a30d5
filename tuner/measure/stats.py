"""Medians, percentiles and what they are worth. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from tuner.measure.model import Sample, Slo, Stat

#: Samples below which a percentile is not told: MLPerf Inference's rule for early stopping gives 64 for p90 and 662
#: for p99 (99 % confidence, tolerance 0), p95 lies between them. The same rule gives 10 for the median.
SAMPLES_FOR: Mapping[str, int] = {"p50": 10, "p90": 64, "p95": 130, "p99": 662}
_SHARE = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
#: Repeats from which their scatter says anything.
_FEWEST_REPEATS = 3


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which ``share`` (0..1) of ``ordered`` (ascending, not empty) lies, between two samples linear."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def rank_error(ordered: Sequence[float], share: float) -> float:
    """Standard error of a percentile, from the samples one standard deviation of its rank to either side.

    A rank scatters by sqrt(n p (1 - p)) whatever the shape of the distribution (binomial).
    """
    n = len(ordered)
    step = math.sqrt(n * share * (1 - share))
    place = share * (n - 1)
    low, high = max(0, math.floor(place - step)), min(n - 1, math.ceil(place + step))
    return (ordered[high] - ordered[low]) / 2


def stat(repeats: Sequence[Sequence[float]]) -> Stat | None:
    """Numbers of all samples together; None without any."""
    ordered = sorted(value for repeat in repeats for value in repeat)
    if not ordered:
        return None
    medians = tuple(statistics.median(repeat) for repeat in repeats if repeat)
    errors = {name: rank_error(ordered, share) for name, share in _SHARE.items() if len(ordered) >= SAMPLES_FOR[name]}
    if "p50" in errors and len(medians) >= _FEWEST_REPEATS:
        # Requests of one repeat share batches, so they scatter less than they are uncertain.
        errors["p50"] = max(errors["p50"], statistics.stdev(medians) / math.sqrt(len(medians)))

    def told(name: str) -> float | None:
        return _rounded(percentile(ordered, _SHARE[name])) if name in errors else None

    return Stat(
        count=len(ordered),
        low=_rounded(ordered[0]),
        p50=_rounded(statistics.median(ordered)),
        high=_rounded(ordered[-1]),
        p90=told("p90"),
        p95=told("p95"),
        p99=told("p99"),
        repeats=tuple(_rounded(median) for median in medians),
        errors={name: _rounded(error) for name, error in errors.items()},
    )


def by_repeat(samples: Sequence[Sample], field: str) -> list[list[float]]:
    """Values of ``field`` of the answered requests, one list for each repeat, those without a value left out."""
    found: dict[int, list[float]] = {}
    for sample in samples:
        value = getattr(sample, field)
        if sample.ok and value is not None:
            found.setdefault(sample.repeat, []).append(value)
    return [found[number] for number in sorted(found)]


def good(sample: Sample, slo: Slo) -> bool:
    """Whether an answer kept the SLO. One that failed, or has no first token, did not."""
    if not sample.ok or (slo.ttft_s is not None and (sample.ttft_s is None or sample.ttft_s > slo.ttft_s)):
        return False
    # An answer of a single token has no time between tokens to miss the goal with.
    return slo.itl_s is None or sample.itl_s is None or sample.itl_s <= slo.itl_s


def good_share(samples: Sequence[Sample], slo: Slo) -> float | None:
    """Share of requests (failed ones included) that kept the SLO; None without an SLO or a request."""
    if not slo.stated or not samples:
        return None
    return round(sum(good(sample, slo) for sample in samples) / len(samples), 4)


def rates(
    samples: Sequence[Sample], seconds: Sequence[float], slo: Slo
) -> tuple[list[float], list[float], list[float]]:
    """Output tokens, requests and good requests a second for each repeat that took so many ``seconds``."""
    tokens, requests, kept = [], [], []
    for number, took in enumerate(seconds):
        mine = [sample for sample in samples if sample.repeat == number and sample.ok]
        if took <= 0 or not mine:
            continue
        tokens.append(round(sum(sample.output_tokens or 0 for sample in mine) / took, 3))
        requests.append(round(len(mine) / took, 4))
        kept.append(round(sum(good(sample, slo) for sample in mine) / took, 4))
    return tokens, requests, kept if slo.stated else []


def _rounded(value: float) -> float:
    """Six places: microseconds, of which a client knows the first ten at best."""
    return round(value, 6)
