"""What readings tell that no flag changes: the card's own speed, slots that only look lost, readings too few."""

from __future__ import annotations

from tuner.advice.case import HOURS_THAT_TELL, Case
from tuner.advice.usage import LEAK_LOOKS
from tuner.measure.physics import alone_ttft_s
from tuner.units import format_seconds, format_tokens

#: Up to here a time to first token is what the prompt takes alone (as ``measure.physics.cause_of``).
_ALONE = 1.25
#: A first token that takes longer than this is asked about, seconds.
_SLOW_S = 1.0


def notes(case: Case) -> tuple[str, ...]:
    """One sentence each, most useful first."""
    told = (_first_token(case), _cached_slots(case), _lost_slots(case), _evictions(case), _few_readings(case))
    return tuple(note for note in told if note)


def _first_token(case: Case) -> str:
    """A slow first token that the prompt's length explains."""
    usage, longest = case.usage, case.usage.longest_request
    ttft = usage.ttft_p95_s
    slow = case.question.slo_ttft_s if case.question.slo_ttft_s is not None else _SLOW_S
    if ttft is None or longest is None or ttft < slow:
        return ""
    rate = usage.prefill_tokens_per_s
    if case.question.physics is not None:
        alone, how = alone_ttft_s(case.question.physics, longest), "measured"
    else:
        alone, how = (longest / rate if rate else None), f"at {rate:,.0f} tokens/s" if rate else ""
    if alone is None:
        return f"A first token takes {format_seconds(ttft)} (p95): tuner measure --physics tells the card from a flag."
    if ttft <= _ALONE * alone:
        return (
            f"A first token takes {format_seconds(ttft)} (p95), and {format_tokens(longest)} cold tokens take "
            f"{format_seconds(alone)} alone ({how}): physics, no flag mends it; shorter inputs, a lower reasoning "
            "effort and kept prefixes do."
        )
    return (
        f"A first token takes {format_seconds(ttft)} (p95), {ttft / alone:.1f} times what {format_tokens(longest)} "
        f"cold tokens take alone ({how}): requests wait, it is not the card."
    )


def _cached_slots(case: Case) -> str:
    usage = case.usage
    if not usage.peak_slots_cached or not usage.slots_total or usage.peak_slots_cached < usage.slots_total // 2:
        return ""
    return (
        f"Cached prefixes held up to {usage.peak_slots_cached} of {usage.slots_total} state slots: they are given up "
        "when a request needs them, so this is no leak."
    )


def _lost_slots(case: Case) -> str:
    """Slots in use beyond what the requests can hold, in every one of the last looks."""
    beyond = case.usage.slots_beyond
    if not beyond:
        return ""
    return (
        f"{beyond} state slots are in use beyond what the running and queued requests can hold, in each of the last "
        f"{LEAK_LOOKS} looks: a leak, which a restart mends and no flag does."
    )


def _evictions(case: Case) -> str:
    usage = case.usage
    if not usage.evicted_tokens or case.kv_full:
        return ""
    took = f" in {format_seconds(usage.eviction_s)}" if usage.eviction_s else ""
    hits = f", and {usage.hit_ratio:.0%} of the prompt tokens are still found" if usage.hit_ratio is not None else ""
    return (
        f"{format_tokens(usage.evicted_tokens)} KV tokens were evicted{took}{hits}: "
        "a cache that is full is normal, only what is computed again costs."
    )


def _few_readings(case: Case) -> str:
    usage = case.question.usage
    if not usage.looks:
        return "No readings are kept of these flags at work: the advice stands on the start alone."
    if not usage.metrics:
        return "The server runs without metrics: set enable_metrics with the next restart, advice is blind without."
    if usage.hours < HOURS_THAT_TELL:
        return (
            f"Readings cover {format_seconds(usage.watched_s)} ({format_tokens(usage.looks)} looks): "
            "hours of the real work make better advice."
        )
    return ""
