"""A sliding window over looks at a server: counters become rates, histograms percentiles."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from tuner.metrics.loads import Loads, ServerInfo, read_loads, read_server_info
from tuner.metrics.model import Reach, Readings
from tuner.metrics.percentile import spread
from tuner.metrics.snapshot import Snapshot

#: Rates over a minute would show a load long after it has ended.
RATE_SECONDS = 10.0
#: Whole numbers from here on are not exact, and no count comes near.
_MOST = 2.0**53


class _Look(NamedTuple):
    at: float
    metrics: Snapshot | None
    loads: Loads | None


class ReadingsWindow:
    """Turns looks at one server into ``Readings``.

    Percentiles cover the last ``seconds`` (or since the look before, if that is longer ago), rates at most the last
    10 s. With ``seconds=math.inf`` percentiles cover the server's whole life, from the first look on. ``key_variable``
    names the environment variable the API key comes from, for the notice. A restart of the server clears the window.
    """

    def __init__(self, seconds: float = 60.0, key_variable: str | None = None) -> None:
        self._seconds = seconds
        self._key_variable = key_variable
        self._looks: deque[_Look] = deque()

    def add(
        self,
        at: float,
        metrics: Snapshot | Reach,
        loads: dict[str, Any] | Reach,
        server_info: dict[str, Any] | None = None,
    ) -> Readings:
        """Take one look (``at`` in seconds of any steady clock) and say what the server is doing."""
        snapshot = metrics if isinstance(metrics, Snapshot) else None
        loads_read = read_loads(loads) if isinstance(loads, dict) else None
        metrics_reach = Reach.OK if isinstance(metrics, Snapshot) else metrics
        loads_reach = loads if isinstance(loads, Reach) else Reach.OK if loads_read else Reach.NONSENSE
        look = _Look(at, snapshot, loads_read)
        if self._looks and (at < self._looks[-1].at or _restarted(self._looks[-1], look)):
            self._looks.clear()
        self._looks.append(look)
        # The look before the window's edge stays: without it a slow poll would compare with nothing.
        while len(self._looks) > 2 and self._looks[1].at <= at - max(self._seconds, RATE_SECONDS):
            self._looks.popleft()
        return self._readings(look, metrics_reach, loads_reach, read_server_info(server_info))

    def _readings(self, look: _Look, metrics_reach: Reach, loads_reach: Reach, info: ServerInfo) -> Readings:
        now, loads = look.metrics, look.loads or Loads(loads=())
        gauges = now or Snapshot()
        old = self._percentile_base(look)
        slots_used, slots_total, slots_evictable = _slots(gauges, info)
        decode = self._rate(lambda x: x.metrics.decoded if x.metrics else None)
        prefill = self._rate(lambda x: x.metrics.prefill_computed if x.metrics else None)
        if now is None:
            decode = loads.total("gen_throughput") if loads.total("num_running_reqs") else _zero_if(loads.loads)
            prefill = self._rate(_uncached)
        admitted = loads.total("max_running_requests")
        if admitted is None:
            admitted = info.total("effective_max_running_requests_per_dp")
        return Readings(
            at=look.at,
            metrics=metrics_reach,
            loads=loads_reach,
            # The gauges keep the last batch's values when the server falls idle; /v1/loads does not.
            kv_used_tokens=_whole(_first(loads.total("num_used_tokens"), gauges.kv_used)),
            kv_total_tokens=_whole(_first(gauges.kv_total, loads.total("max_total_num_tokens"), _kv_sum(gauges))),
            kv_evictable_tokens=_whole(gauges.kv_evictable),
            slots_used=slots_used,
            slots_total=slots_total,
            slots_evictable=slots_evictable,
            running=_whole(_first(loads.total("num_running_reqs"), gauges.running)),
            queued=_whole(_first(loads.total("num_waiting_reqs"), gauges.queued)),
            max_running_requests=_whole(admitted),
            decode_tokens_per_s=decode,
            prefill_tokens_per_s=prefill,
            ttft_s=spread(old.ttft, now.ttft) if now and old else None,
            itl_s=spread(old.itl, now.itl) if now and old else None,
            e2e_s=spread(old.e2e, now.e2e) if now and old else None,
            prefix_hit_ratio=_prefix_hit_ratio(gauges),
            acceptance_length=gauges.acceptance_length or loads.acceptance_length,
            evicted_tokens=_whole(now.evicted_tokens) if now else None,
            retracted_requests=_whole(now.retracted) if now else None,
            aborted_requests=_whole(now.aborted) if now else None,
            notice=self._notice(metrics_reach, loads_reach),
        )

    def _percentile_base(self, look: _Look) -> Snapshot | None:
        if math.isinf(self._seconds):
            return Snapshot()
        earlier = [x for x in self._looks if x is not look and x.metrics]
        inside = [x for x in earlier if x.at >= look.at - self._seconds]
        base = inside[0] if inside else earlier[-1] if earlier else None
        return base.metrics if base else None

    def _rate(self, counter: Callable[[_Look], float | None]) -> float | None:
        """Gain per second of a counter; None without an earlier look that has it."""
        look = self._looks[-1]
        value = counter(look)
        earlier = [x for x in self._looks if x.at < look.at and counter(x) is not None]
        inside = [x for x in earlier if x.at >= look.at - RATE_SECONDS]
        base = inside[0] if inside else earlier[-1] if earlier else None
        if value is None or base is None:
            return None
        return max(0.0, value - (counter(base) or 0.0)) / (look.at - base.at)

    def _notice(self, metrics: Reach, loads: Reach) -> str:
        if Reach.LOCKED in (metrics, loads):
            where = self._key_variable or "the variable that the recipe's api_key names"
            return f"The server wants its API key: set {where} in the environment of the tuner."
        if metrics == Reach.UNREACHABLE and loads == Reach.UNREACHABLE:
            return "The server does not answer."
        if metrics == Reach.OFF:
            return "No latencies, slots or cache hits: the server runs without --enable-metrics."
        if metrics == Reach.NONSENSE:
            return "/metrics did not answer with SGLang's metrics: check that host and port are the server's."
        if metrics == Reach.UNREACHABLE:
            return "/metrics does not answer: latencies, slots and cache hits are missing."
        if loads in (Reach.OFF, Reach.NONSENSE):
            return "/v1/loads did not answer as SGLang 0.5.9 and later do: running and queued may be up to 30 s old."
        return ""


def _uncached(look: _Look) -> float | None:
    return look.loads.total("total_prefill_uncached_tokens") if look.loads else None


def _restarted(old: _Look, new: _Look) -> bool:
    if old.metrics and new.metrics:
        if old.metrics.startup and new.metrics.startup and old.metrics.startup != new.metrics.startup:
            return True
        return any(b < a for a, b in zip(old.metrics.counters(), new.metrics.counters(), strict=True))
    before, after = _uncached(old), _uncached(new)
    return before is not None and after is not None and after < before


def _slots(gauges: Snapshot, info: ServerInfo) -> tuple[int | None, int | None, int | None]:
    """Used, total and evictable state slots; all None for a model without states (whose gauges are all 0)."""
    parts = (gauges.slots_used, gauges.slots_available, gauges.slots_evictable)
    used, available, evictable = parts
    if used is not None and available is not None and evictable is not None:
        total = used + available + evictable
        return (_whole(used), _whole(total), _whole(evictable)) if total else (None, None, None)
    slots = info.total("max_mamba_cache_size")
    if slots and gauges.mamba_usage is not None:
        return _whole(gauges.mamba_usage * slots), slots, None
    return None, slots or None, None


def _prefix_hit_ratio(gauges: Snapshot) -> float | None:
    """Cached share of the prompt tokens since the server started (0.5.9+: per batch; before: per finished request)."""
    seen = gauges.prefill_cached + gauges.prefill_computed
    if seen:
        return gauges.prefill_cached / seen
    return gauges.cached_tokens / gauges.prompt_tokens if gauges.prompt_tokens else None


def _kv_sum(gauges: Snapshot) -> float | None:
    if gauges.kv_used is None or gauges.kv_available is None:
        return None
    return gauges.kv_used + gauges.kv_available + (gauges.kv_evictable or 0.0)


def _first(*values: float | None) -> float | None:
    return next((v for v in values if v is not None), None)


def _zero_if(there: object) -> float | None:
    return 0.0 if there else None


def _whole(value: float | None) -> int | None:
    return None if value is None or not abs(value) < _MOST else round(value)
