"""Loads of two rounds side by side, judged by their samples. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from tuner.measure.model import Measurement, Stat
from tuner.measure.report import load_text
from tuner.rounds.model import Change, ChangeVerdict
from tuner.rounds.noise import compare, compare_measured, compare_rates
from tuner.rounds.values import share_text

_LATENCIES = (("TTFT", "ttft_s"), ("ITL", "itl_s"), ("whole request", "total_s"))
_PERCENTILES = ("p50", "p90", "p95", "p99")


def measured(old: Sequence[Measurement], new: Sequence[Measurement]) -> Iterator[Change]:
    """What changed between the newest loads of the same kind; loads of other kinds cannot be compared."""
    if not old and not new:
        return
    pair = newest_pair(old, new)
    if pair is None:
        yield Change(
            name="load",
            old=load_text(old[-1].load) if old else None,
            new=load_text(new[-1].load) if new else None,
            verdict=ChangeVerdict.NOT_COMPARABLE,
        )
        return
    before, after = pair
    name = f"load {load_text(after.load)}: "
    for label, field in _LATENCIES:
        yield from _latency(f"{name}{label}", getattr(before, field), getattr(after, field))
    yield from _rate(f"{name}output, tokens/s", before.output_tokens_per_s, after.output_tokens_per_s)
    yield from _rate(f"{name}requests/s", before.requests_per_s, after.requests_per_s)
    if before.slo == after.slo:
        yield from _rate(f"{name}good requests/s", before.good_per_s, after.good_per_s)
    if before.failed != after.failed:
        verdict = compare(before.failed, after.failed, lower_is_better=True)
        yield Change(
            name=f"{name}failed requests",
            old=before.failed,
            new=after.failed,
            change=f"{after.failed - before.failed:+,}",
            verdict=verdict,
        )


def newest_pair(old: Sequence[Measurement], new: Sequence[Measurement]) -> tuple[Measurement, Measurement] | None:
    """The newest two measurements of one and the same load; None when there are none."""
    for after in reversed(new):
        for before in reversed(old):
            if before.load == after.load:
                return before, after
    return None


def _latency(name: str, before: Stat | None, after: Stat | None) -> Iterator[Change]:
    if before is None or after is None:
        if before is not after:
            yield Change(
                name=f"{name} p50, s",
                old=before.p50 if before else None,
                new=after.p50 if after else None,
                verdict=ChangeVerdict.NOT_COMPARABLE,
            )
        return
    for which in _PERCENTILES:
        was, is_ = getattr(before, which), getattr(after, which)
        if was is None or is_ is None:
            continue
        yield Change(
            name=f"{name} {which}, s",
            old=round(was, 4),
            new=round(is_, 4),
            change=share_text(was, is_),
            verdict=compare_measured(before, after, which),
        )


def _rate(name: str, before: Sequence[float], after: Sequence[float]) -> Iterator[Change]:
    if not before or not after:
        return
    was, is_ = statistics.median(before), statistics.median(after)
    yield Change(
        name=name,
        old=round(was, 4),
        new=round(is_, 4),
        change=share_text(was, is_),
        verdict=compare_rates(before, after),
    )
