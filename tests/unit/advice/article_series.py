"""Forty-six hours of readings as field article B tells them, made up where it does not.

From the article: three agents, inputs of up to 68,431 tokens, a cold prefill of 2,700 tokens/s (24.8 s for 68K), ITL
p99 60 ms, acceptance 0.75 to 0.82 with one draft, evictions that cost 0.3 s in all, all slots held by idle agents'
prefixes. Made up: when the agents pause, how often one waits, the hit ratio, the evicted tokens, the middle of the ITL.
One look a minute.
"""

from __future__ import annotations

from tuner.metrics.model import Reach, Readings, Spread

HOURS = 46
LONGEST = 68_431
PREFILL = 2_700.0
_EVERY_S = 60.0


def looks(
    *,
    kv_total: int,
    slots_total: int,
    acceptance: float | None = None,
    queued: int = 1,
    hit_ratio: float = 0.62,
    evicted_share: float = 0.4,
    hours: float = HOURS,
    itl_p50: float = 0.034,
    itl_p95: float = 0.058,
    metrics: Reach = Reach.OK,
) -> tuple[Readings, ...]:
    """Readings of a server with these pools. ``evicted_share``: evicted tokens of the computed ones."""
    made: list[Readings] = []
    computed = 0.0
    for minute in range(round(hours * 60)):
        running = (1, 2, 3, 3, 1, 0)[minute % 6]
        waiting = queued if minute % 12 == 3 else 0
        rate = PREFILL if minute % 18 in (1, 8) else 0.0
        computed += rate * _EVERY_S
        used = min(kv_total, (0, LONGEST, 96_000, 105_000)[running])
        made.append(
            Readings(
                at=1_790_000_000.0 + minute * _EVERY_S,
                metrics=metrics,
                loads=Reach.OK,
                kv_used_tokens=used,
                kv_total_tokens=kv_total,
                kv_evictable_tokens=min(kv_total - used, 40_000 + 1_000 * minute),
                slots_used=3 * running + running,
                slots_total=slots_total,
                slots_evictable=max(0, min(minute, slots_total - 4 * running)),
                running=running,
                queued=waiting,
                max_running_requests=3,
                decode_tokens_per_s=30.0 * running,
                prefill_tokens_per_s=rate,
                ttft_s=Spread(p50=1.6, p95=24.8, count=3) if running else None,
                itl_s=Spread(p50=itl_p50, p95=itl_p95, count=600) if running else None,
                prefix_hit_ratio=hit_ratio,
                acceptance_length=acceptance,
                evicted_tokens=round(evicted_share * computed),
                eviction_seconds=0.3 * minute / (hours * 60),
                retracted_requests=0,
            )
        )
    return tuple(made)
