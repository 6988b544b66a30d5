"""Readings in words, the same in commands and on screens. Pure."""

from __future__ import annotations

from tuner.metrics.model import GpuReading, Readings, Spread
from tuner.units import format_gib, format_seconds, format_tokens

#: Marks a value that an idle server has not refreshed.
LAST_BATCH = "as of the last batch"
#: Observations below which a percentile is not told, as of a load that is measured (``measure.stats.SAMPLES_FOR``).
P50_NEEDS, P95_NEEDS = 10, 130


def rows(r: Readings) -> tuple[tuple[str, str], ...]:
    """Every reading that is told: its name and its value with units. Percentiles are those of the window."""
    found = [
        ("KV pool", kv_words(r)),
        ("State slots", slots_words(r)),
        ("Requests", requests_words(r)),
        ("Speed", speed_words(r)),
        ("TTFT", spread_words(r.ttft_s)),
        ("ITL", spread_words(r.itl_s)),
        ("End to end", spread_words(r.e2e_s)),
        ("Queue", spread_words(r.queue_s)),
        ("Prefix hits", _hits(r)),
        ("Acceptance", _acceptance(r)),
        ("Evicted", _evicted(r)),
        ("Retracted", _counted(r.retracted_requests)),
        ("Aborted", _counted(r.aborted_requests)),
        ("Stalls", stalls_words(r)),
    ]
    return tuple((name, words) for name, words in found if words)


def kv_words(r: Readings) -> str:
    """``100,001 of 262,294 tokens in use (38 %), 5,000 more cached``."""
    if r.kv_used_tokens is None:
        return f"{format_tokens(r.kv_total_tokens)} tokens" if r.kv_total_tokens is not None else ""
    of = f" of {format_tokens(r.kv_total_tokens)}" if r.kv_total_tokens is not None else ""
    share = f" ({percent(r.kv_used_tokens, r.kv_total_tokens)})" if r.kv_total_tokens else ""
    cached = f", {format_tokens(r.kv_evictable_tokens)} more cached" if r.kv_evictable_tokens else ""
    return f"{format_tokens(r.kv_used_tokens)}{of} tokens in use{share}{cached}{_mark(r, 'kv_used_tokens')}"


def slots_words(r: Readings) -> str:
    """``12 of 57 held by requests, 9 by the cache, 36 free``; empty for a model without states."""
    if not r.slots_total:
        return ""
    if r.slots_used is None:
        return f"{r.slots_total}, how many are in use is not told"
    cached = f", {r.slots_evictable} by the cache" if r.slots_evictable is not None else ""
    free = r.slots_total - r.slots_used - (r.slots_evictable or 0)
    return f"{r.slots_used} of {r.slots_total} held by requests{cached}, {free} free{_mark(r, 'slots_used')}"


def requests_words(r: Readings) -> str:
    """``2 of 3 admitted run, 1 wait``; while prefill goes through, that those in it are in neither number.

    SGLang takes a request out of the queue for its first chunk and into the running batch after its last one
    (``managers/scheduler.py``, 0.5.9 to 0.5.23), and no reading tells how many are between the two.
    """
    if r.running is None:
        return f"{r.max_running_requests} admitted" if r.max_running_requests is not None else ""
    of = f" of {r.max_running_requests} admitted" if r.max_running_requests is not None else ""
    waiting = f", {r.queued} wait" if r.queued is not None else ""
    has_room = r.max_running_requests is None or r.running < r.max_running_requests
    uncounted = ", prefill not counted" if r.prefill_tokens_per_s and has_room else ""
    return f"{r.running}{of} run{waiting}{uncounted}"


def speed_words(r: Readings) -> str:
    """``151 tokens/s decode, 2,710 tokens/s prefill``."""
    parts = ((r.decode_tokens_per_s, "decode"), (r.prefill_tokens_per_s, "prefill"))
    return ", ".join(f"{speed:,.0f} tokens/s {name}" for speed, name in parts if speed is not None)


def spread_words(what: Spread | None) -> str:
    """``0.83 s p50, 1.5 s p95, of 400``; of fewer ``0.83 s p50, of 40``, of very few ``about 25 s, of 1``."""
    if what is None:
        return ""
    middle = format_seconds(what.p50)
    if what.count < P50_NEEDS:
        return f"about {middle}, of {what.count}"
    p95 = f", {format_seconds(what.p95)} p95" if what.count >= P95_NEEDS else ""
    return f"{middle} p50{p95}, of {what.count:,}"


def stalls_words(r: Readings) -> str:
    """Whether decode stands still behind prefill, and how long it did lately."""
    if r.stalled_seconds is None:
        return ""
    if r.stalled:
        return f"decode stands still now, {format_seconds(r.stalled_seconds)} of the last minute"
    return f"{format_seconds(r.stalled_seconds)} of the last minute" if r.stalled_seconds else "none in the last minute"


def gpu_words(gpu: GpuReading) -> str:
    """One GPU on one line: what is told of memory, load, power, clock, temperature, and what holds it back."""
    used = None if gpu.used_mib is None else format_gib(gpu.used_mib / 1024)
    total = None if gpu.total_mib is None else format_gib(gpu.total_mib / 1024)
    limit = f" of {gpu.power_limit_w:.0f}" if gpu.power_limit_w is not None else ""
    top = f" of {gpu.clock_max_mhz}" if gpu.clock_max_mhz is not None else ""
    parts = [
        f"{used} of {total}" if used and total else used,
        f"{gpu.utilisation} % busy" if gpu.utilisation is not None else None,
        f"{gpu.power_w:.0f}{limit} W" if gpu.power_w is not None else None,
        f"{gpu.clock_mhz}{top} MHz" if gpu.clock_mhz is not None else None,
        f"{gpu.temperature_c} C" if gpu.temperature_c is not None else None,
        f"held back: {', '.join(gpu.throttled)}" if gpu.throttled else None,
    ]
    return " · ".join(part for part in parts if part)


def percent(part: float | None, whole: float | None) -> str:
    """A share in whole percent, ``38 %``; below one with a digit more, so that little is not nothing."""
    if part is None or not whole:
        return ""
    share = 100 * part / whole
    return f"{share:.1f} %" if 0 < share < 1 else f"{share:.0f} %"


def _hits(r: Readings) -> str:
    if r.prefix_hit_ratio is None:
        return ""
    return f"{100 * r.prefix_hit_ratio:.1f} % of the prompt tokens since the start"


def _acceptance(r: Readings) -> str:
    if r.acceptance_length is None:
        return ""
    return f"{r.acceptance_length:.2f} tokens a step{_mark(r, 'acceptance_length')}"


def _evicted(r: Readings) -> str:
    if r.evicted_tokens is None:
        return ""
    took = f" in {format_seconds(r.eviction_seconds)}" if r.eviction_seconds else ""
    now = f", {r.evicted_tokens_per_s:,.0f} a second now" if r.evicted_tokens_per_s else ""
    return f"{format_tokens(r.evicted_tokens)} KV tokens{took}{now}"


def _counted(count: int | None) -> str:
    return "" if count is None else f"{count:,} since the start"


def _mark(r: Readings, field: str) -> str:
    return f", {LAST_BATCH}" if field in r.stale else ""
