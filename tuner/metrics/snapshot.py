"""One answer of ``/metrics``, reduced to what the tuner reads."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from tuner.metrics.exposition import families_of

if TYPE_CHECKING:
    from prometheus_client.samples import Sample

_PREFIX = "sglang:"

#: Gauges by field of ``Snapshot``, newest name first. Those named ``mamba_*_tokens`` count state slots (0.5.12+).
_GAUGES: dict[str, tuple[str, ...]] = {
    "kv_used": ("kv_used_tokens", "num_used_tokens"),
    "kv_available": ("kv_available_tokens",),
    "kv_evictable": ("kv_evictable_tokens",),
    "kv_total": ("max_total_num_tokens",),
    "slots_used": ("mamba_used_tokens",),
    "slots_available": ("mamba_available_tokens",),
    "slots_evictable": ("mamba_evictable_tokens",),
    "running": ("num_running_reqs",),
    "queued": ("num_queue_reqs",),
    "throughput": ("gen_throughput",),
}
#: Gauges that are no amounts: over several ranks the mean counts, not the sum.
_MEANS: dict[str, tuple[str, ...]] = {
    "mamba_usage": ("mamba_usage",),
    "acceptance_length": ("spec_accept_length",),
}
_COUNTERS: dict[str, tuple[str, str | None]] = {
    "prefill_computed": ("realtime_tokens_total", "prefill_compute"),
    "prefill_cached": ("realtime_tokens_total", "prefill_cache"),
    "decoded": ("realtime_tokens_total", "decode"),
    "prompt_tokens": ("prompt_tokens_total", None),
    "generated_tokens": ("generation_tokens_total", None),
    "cached_tokens": ("cached_tokens_total", None),
    "requests": ("num_requests_total", None),
    "aborted": ("num_aborted_requests_total", None),
    "retracted": ("num_retracted_requests_total", None),
    "evicted_tokens": ("evicted_tokens_total", None),
    "eviction_seconds": ("eviction_duration_seconds_sum", None),
    # 0.5.23: without what a retraction makes the server compute again.
    "effective_input": ("prefill_effective_tokens_total", "input"),
    "effective_device_hit": ("prefill_effective_tokens_total", "device_hit"),
    "effective_host_hit": ("prefill_effective_tokens_total", "host_hit"),
    "effective_storage_hit": ("prefill_effective_tokens_total", "storage_hit"),
}
_HISTOGRAMS = {
    "ttft": "time_to_first_token_seconds",
    "itl": "inter_token_latency_seconds",
    "e2e": "e2e_request_latency_seconds",
    "queue": "queue_time_seconds",
}
#: Counted by every rank's own cache; until 0.5.17 without rank labels, so that the page shows the sum of the ranks
#: (``mem_cache/base_prefix_cache.py``, ``init_metrics_collector``; 0.5.23 has ``radix_cache_metric_labels``).
_BY_CACHE = "evicted_tokens_total"
#: Longest page that is read, in characters without its comments; a real one has 100,000 for some ranks.
_LONGEST = 2_000_000
#: Longest line, in characters; a real one has a few hundred. The parser takes time with the square of it.
_LONGEST_LINE = 16_000
#: Whole numbers from here on are not exact, and no count, time or speed comes near.
MOST = 2.0**53
_STARTUP = ("startup_time_seconds", "engine_startup_time")

#: A line of values whose name starts with ours, up to where the name ends.
_NAME = re.compile(rf"{_PREFIX}[A-Za-z0-9_:]*")
_WANTED = frozenset(
    _PREFIX + name
    for name in (
        *(n for names in (*_GAUGES.values(), *_MEANS.values()) for n in names),
        *(name for name, _ in _COUNTERS.values()),
        *(name + end for name in _HISTOGRAMS.values() for end in ("_bucket", "_sum", "_count")),
        *_STARTUP,
    )
)


class MetricsError(Exception):
    """An answer that is no SGLang metrics; the message is one sentence for the operator."""


class Histogram(msgspec.Struct, frozen=True, kw_only=True):
    """A histogram in seconds: upper bounds with cumulative counts, ascending, the last bound infinite."""

    buckets: tuple[tuple[float, float], ...] = ()
    count: float = 0.0
    sum: float = 0.0


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Values at one moment, over all DP ranks. A gauge is None when absent; an absent counter is 0.

    SGLang leaves a counter out until its first event (0.5.17, recordings). Tokens, slots, requests, tokens/s.
    """

    kv_used: float | None = None
    kv_available: float | None = None
    kv_evictable: float | None = None
    kv_total: float | None = None
    slots_used: float | None = None
    slots_available: float | None = None
    slots_evictable: float | None = None
    mamba_usage: float | None = None
    running: float | None = None
    queued: float | None = None
    throughput: float | None = None
    acceptance_length: float | None = None
    prefill_computed: float = 0.0
    prefill_cached: float = 0.0
    decoded: float = 0.0
    prompt_tokens: float = 0.0
    generated_tokens: float = 0.0
    cached_tokens: float = 0.0
    requests: float = 0.0
    aborted: float = 0.0
    retracted: float = 0.0
    evicted_tokens: float = 0.0
    eviction_seconds: float = 0.0
    effective_input: float = 0.0
    effective_device_hit: float = 0.0
    effective_host_hit: float = 0.0
    effective_storage_hit: float = 0.0
    #: Whether the counts of evictions are those of one rank; without labels they are the sum over all ranks.
    evictions_by_rank: bool = False
    ttft: Histogram = Histogram()
    itl: Histogram = Histogram()
    e2e: Histogram = Histogram()
    queue: Histogram = Histogram()
    #: Start-up times by phase: they differ from start to start and tell two starts apart.
    startup: tuple[tuple[str, float], ...] = ()

    def counters(self) -> tuple[float, ...]:
        """All counters, in a fixed order: none of them falls while a server lives."""
        histograms = (self.ttft.count, self.itl.count, self.e2e.count, self.queue.count)
        return (*(getattr(self, name) for name in _COUNTERS), *histograms)


def parse_metrics(text: str) -> Snapshot:
    """Read the text of ``/metrics`` (SGLang 0.5.5 to 0.5.23).

    Values that can be no count, time or speed (negative, 2^53 and more, no numbers) are left out, and lines longer
    than any of SGLang's. Raises ``MetricsError`` when it is not the exposition format, or holds no SGLang metric.
    """
    page = _samples_of(text)
    if len(page) > _LONGEST:
        raise MetricsError(f"/metrics answered with {len(page):,} characters of values: SGLang's are a tenth of that.")
    by_name: dict[str, list[Sample]] = {}
    try:
        for family in families_of(page):
            for sample in family.samples:
                samples = by_name.setdefault(sample.name, [])
                if is_told(sample.value):
                    samples.append(sample)
    except (ValueError, KeyError, IndexError, AttributeError, TypeError) as error:
        # The parser lets all of these through, depending on where the text breaks off.
        raise MetricsError("/metrics answered with something that is not the Prometheus text format.") from error
    if not by_name:
        raise MetricsError("/metrics answered without any SGLang metric; check that host and port are the server's.")
    found = {name: _one_rank_per_replica(samples) for name, samples in by_name.items()}
    values: dict[str, Any] = {field: _sum_of_first(found, names) for field, names in _GAUGES.items()}
    values |= {field: _mean_of_first(found, names) for field, names in _MEANS.items()}
    values |= {field: _counter(found, name, mode) for field, (name, mode) in _COUNTERS.items()}
    values |= {field: _histogram(found, name) for field, name in _HISTOGRAMS.items()}
    startup = sorted((s.labels.get("phase", ""), s.value) for name in _STARTUP for s in found.get(_PREFIX + name, ()))
    by_rank = any("tp_rank" in s.labels for s in by_name.get(_PREFIX + _BY_CACHE, ()))
    return Snapshot(**values, startup=tuple(startup), evictions_by_rank=by_rank)


def is_told(value: float) -> bool:
    """Whether ``value`` can be a count, a time or a speed: none of them is negative or without bound."""
    return 0 <= value < MOST


def _samples_of(text: str) -> str:
    """The lines of ``text`` with values that are read: the parser takes three times as long for all of them."""
    return "".join(
        line
        for line in text.splitlines(keepends=True)
        if len(line) <= _LONGEST_LINE and (name := _NAME.match(line)) and name.group() in _WANTED
    )


def _one_rank_per_replica(samples: list[Sample]) -> list[Sample]:
    """Of ranks that say the same (``--enable-metrics-for-all-schedulers``) the first per DP rank, and of priorities
    the total, which has the empty priority."""
    if any(s.labels.get("priority") == "" for s in samples):
        samples = [s for s in samples if not s.labels.get("priority")]
    ranks: dict[str, tuple[int, ...]] = {}
    for sample in samples:
        replica, rank = sample.labels.get("dp_rank", ""), _rank(sample)
        ranks[replica] = min(ranks.get(replica, rank), rank)
    return [s for s in samples if _rank(s) == ranks[s.labels.get("dp_rank", "")]]


def _rank(sample: Sample) -> tuple[int, ...]:
    labels = (sample.labels.get(name, "") for name in ("pp_rank", "tp_rank", "moe_ep_rank"))
    return tuple(int(x) if x.isascii() and x.isdigit() and len(x) < 10 else 0 for x in labels)


def _values(found: dict[str, list[Sample]], names: Iterable[str]) -> list[float]:
    return next((v for n in names if (v := [s.value for s in found.get(_PREFIX + n, ())])), [])


def _sum_of_first(found: dict[str, list[Sample]], names: Iterable[str]) -> float | None:
    values = _values(found, names)
    return sum(values) if values else None


def _mean_of_first(found: dict[str, list[Sample]], names: Iterable[str]) -> float | None:
    values = _values(found, names)
    return sum(values) / len(values) if values else None


def _counter(found: dict[str, list[Sample]], name: str, mode: str | None) -> float:
    return sum(s.value for s in found.get(_PREFIX + name, ()) if mode is None or s.labels.get("mode") == mode)


def _histogram(found: dict[str, list[Sample]], name: str) -> Histogram:
    buckets: dict[float, float] = {}
    for sample in found.get(f"{_PREFIX}{name}_bucket", ()):
        bound = _bound(sample)
        if bound is not None:
            buckets[bound] = buckets.get(bound, 0.0) + sample.value
    return Histogram(
        buckets=tuple(sorted(buckets.items())),
        count=sum(s.value for s in found.get(f"{_PREFIX}{name}_count", ())),
        sum=sum(s.value for s in found.get(f"{_PREFIX}{name}_sum", ())),
    )


def _bound(sample: Sample) -> float | None:
    """Upper bound of a bucket; None when its label is missing, no number or negative."""
    try:
        bound = float(sample.labels.get("le", ""))
    except ValueError:
        return None
    return bound if bound >= 0 else None
