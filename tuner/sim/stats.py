"""What the stand-in counts while it serves. Pure: plain numbers, rendered by ``metrics_page``."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import NamedTuple

from tuner.sim.cache import PrefixCache

TTFT_BUCKETS = (
    0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0, 400.0,
)  # fmt: skip
E2E_BUCKETS = (*TTFT_BUCKETS, 600.0, 1200.0, 1800.0, 2400.0)
ITL_BUCKETS = (
    0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 0.6, 0.8,
    1.0, 2.0, 4.0, 6.0, 8.0,
)  # fmt: skip
QUEUE_BUCKETS = (
    0.0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0,
    70.0, 80.0, 90.0, 100.0, 200.0, 300.0, 400.0, 500.0, 600.0, 700.0, 800.0, 900.0, 1000.0, 1200.0, 1400.0, 1600.0,
    1800.0, 2000.0, 2500.0, 3000.0,
)  # fmt: skip
STAGE_BUCKETS = tuple(0.001 * 1.62**n for n in range(30))
LOADS_BUCKETS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0)
TOKEN_BUCKETS = (
    100.0, 300.0, 500.0, 700.0, 1000.0, 1500.0, 2000.0, 3000.0, 4000.0, 5000.0, 6000.0, 7000.0, 8000.0, 9000.0,
    10000.0, 12500.0, 15000.0, 17500.0, 20000.0, 22500.0, 25000.0, 27500.0, 30000.0, 35000.0, 40000.0, 60000.0,
    80000.0, 100000.0, 200000.0, 300000.0, 400000.0, 600000.0, 800000.0, 1e06, 1.1e06,
)  # fmt: skip
EVICTION_BUCKETS = (0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.007, 0.008, 0.009, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class Histogram:
    """Counts of observations per bucket, with their sum."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Adds ``times`` observations of ``value``."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    @property
    def count(self) -> int:
        """Number of observations."""
        return sum(self.counts)


class HttpKey(NamedTuple):
    """Labels of the HTTP counters."""

    endpoint: str
    method: str


class Gauges:
    """Values of the last refresh: stale between refreshes, as in SGLang."""

    def __init__(self) -> None:
        self.running = 0
        self.queued = 0
        self.throughput = 0.0
        self.last_throughput = 0.0
        self.kv_used = 0
        self.kv_free = 0
        self.kv_evictable = 0
        self.slots_used = 0
        self.slots_free = 0
        self.slots_evictable = 0
        self.sequence_tokens = 0
        self.accept_length = 0.0
        self.accept_rate = 0.0
        self.decoded = False

    def see_pools(self, cache: PrefixCache) -> None:
        """Takes over what both pools hold now."""
        self.kv_free, self.kv_evictable = cache.free_tokens, cache.evictable_tokens
        self.kv_used = cache.shape.kv_tokens - self.kv_free - self.kv_evictable
        self.slots_free, self.slots_evictable = cache.free_slots, cache.evictable_slots
        self.slots_used = cache.shape.slots - self.slots_free - self.slots_evictable


class Stats:
    """Counters and histograms since the start. A key that is missing never happened."""

    def __init__(self) -> None:
        self.gauges = Gauges()
        self.realtime_tokens: Counter[str] = Counter()
        self.passes: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        self.prompt_tokens: Counter[str] = Counter()
        self.generated_tokens: Counter[str] = Counter()
        self.cached_tokens = 0
        self.aborted = 0
        self.verify_calls = 0
        self.retracted_requests = 0
        self.retracted_input_tokens = 0
        self.retracted_output_tokens = 0
        self.evicted_tokens = 0
        self.evictions = Histogram(EVICTION_BUCKETS)
        self.http_requests: Counter[HttpKey] = Counter()
        self.http_active: Counter[HttpKey] = Counter()
        self.http_responses: Counter[tuple[HttpKey, int]] = Counter()
        self.ttft: dict[str, Histogram] = {}
        self.e2e: dict[str, Histogram] = {}
        self.itl = Histogram(ITL_BUCKETS)
        self.queue_time = Histogram(QUEUE_BUCKETS)
        self.stages: dict[str, Histogram] = {}
        self.prompt_lengths = Histogram(TOKEN_BUCKETS)
        self.uncached_lengths = Histogram(TOKEN_BUCKETS)
        self.output_lengths = Histogram(TOKEN_BUCKETS)
        self.loads_seconds = Histogram(LOADS_BUCKETS)
        self.uncached_prefilled = 0
        self.prefill_busy_us = 0

    def stage(self, name: str, seconds: float) -> None:
        """One passage of a request through a stage."""
        self.stages.setdefault(name, Histogram(STAGE_BUCKETS)).observe(seconds)

    def finished(self, *, streaming: bool, prompt: int, cached: int, output: int, ttft_s: float, e2e_s: float) -> None:
        """A request is done."""
        label = "true" if streaming else "false"
        self.requests[label] += 1
        self.prompt_tokens[label] += prompt
        self.generated_tokens[label] += output
        if cached:
            self.cached_tokens += cached
        self.ttft.setdefault(label, Histogram(TTFT_BUCKETS)).observe(ttft_s)
        self.e2e.setdefault(label, Histogram(E2E_BUCKETS)).observe(e2e_s)
        self.prompt_lengths.observe(prompt)
        self.uncached_lengths.observe(prompt - cached)
        self.output_lengths.observe(output)
