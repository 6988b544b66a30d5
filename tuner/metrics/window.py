"""A sliding window over looks at a server: counters become rates, histograms percentiles."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from tuner.metrics.loads import Loads, ServerInfo, read_loads, read_server_info
from tuner.metrics.model import Reach, Readings
from tuner.metrics.notices import notice
from tuner.metrics.percentile import spread
from tuner.metrics.snapshot import MOST, Snapshot
from tuner.metrics.stalls import Step, is_stall

#: Rates over a minute would show a load long after it has ended.
RATE_SECONDS = 10.0
#: Gauges that keep the values of the last batch while the server is idle (0.5.17, recording r15 at its end).
_KEPT_WHEN_IDLE = ("kv_evictable_tokens", "slots_used", "slots_evictable", "acceptance_length")


class _Look(NamedTuple):
    at: float
    metrics: Snapshot | None
    loads: Loads | None
    #: Since the look before that had metrics; None for the first.
    step: Step | None = None
    stall: bool = False


class ReadingsWindow:
    """Turns looks at one server into ``Readings``.

    Percentiles cover the last ``seconds`` (or since the look before, if that is longer ago), rates at most the last
    10 s. With ``seconds=math.inf`` percentiles cover the server's whole life, from the first look on. ``key_variable``
    names the environment variable the API key comes from, for the notice. A restart of the server, or a reset of its
    counters, clears the window.
    """

    def __init__(self, seconds: float = 60.0, key_variable: str | None = None) -> None:
        self._seconds = seconds
        #: How long looks are kept; with percentiles over the whole life they are needed for rates alone.
        self._kept_s = RATE_SECONDS if math.isinf(seconds) else max(seconds, RATE_SECONDS)
        self._key_variable = key_variable
        self._looks: deque[_Look] = deque()
        #: The last answers, however long ago: a server may come back from an outage as another one.
        self._last_metrics: Snapshot | None = None
        self._last_loads: Loads | None = None
        self._began_anew_at: float | None = None

    def add(
        self,
        at: float,
        metrics: Snapshot | Reach,
        loads: dict[str, Any] | Reach,
        server_info: dict[str, Any] | None = None,
        answered_s: float | None = None,
    ) -> Readings:
        """Take one look (``at`` in seconds of any steady clock) and say what the server is doing.

        ``answered_s``: how long its answers took.
        """
        snapshot = metrics if isinstance(metrics, Snapshot) else None
        loads_read = read_loads(loads) if isinstance(loads, dict) else None
        metrics_reach = Reach.OK if isinstance(metrics, Snapshot) else metrics
        loads_reach = loads if isinstance(loads, Reach) else Reach.OK if loads_read else Reach.NONSENSE
        if self._looks and at < self._looks[-1].at:
            self._looks.clear()
        if self._restarted(snapshot, loads_read):
            self._looks.clear()
            self._began_anew_at = at
        self._last_metrics = snapshot or self._last_metrics
        self._last_loads = loads_read or self._last_loads
        look = self._with_step(_Look(at, snapshot, loads_read))
        self._looks.append(look)
        # The look before the window's edge stays: without it a slow poll would compare with nothing.
        while len(self._looks) > 2 and self._looks[1].at <= at - self._kept_s:
            self._looks.popleft()
        return self._readings(look, metrics_reach, loads_reach, read_server_info(server_info), answered_s)

    def _restarted(self, metrics: Snapshot | None, loads: Loads | None) -> bool:
        old = self._last_metrics
        if old and metrics:
            if old.startup and metrics.startup and old.startup != metrics.startup:
                return True
            return any(b < a for a, b in zip(old.counters(), metrics.counters(), strict=True))
        before, after = _uncached(self._last_loads), _uncached(loads)
        return before is not None and after is not None and after < before

    def _with_step(self, look: _Look) -> _Look:
        before = next((x for x in reversed(self._looks) if x.metrics), None)
        if before is None or look.metrics is None or before.metrics is None or look.at <= before.at:
            return look
        step = Step(
            seconds=look.at - before.at,
            decoded=look.metrics.decoded - before.metrics.decoded,
            prefilled=look.metrics.prefill_computed - before.metrics.prefill_computed,
            running=look.metrics.running,
        )
        return look._replace(step=step, stall=is_stall(step, [x.step for x in self._looks if x.step]))

    def _readings(
        self, look: _Look, metrics_reach: Reach, loads_reach: Reach, info: ServerInfo, answered_s: float | None
    ) -> Readings:
        now, loads = look.metrics, look.loads or Loads(loads=())
        if now is None and look.loads is None:
            # Of a server that does not answer, what it said of itself may be another's by now.
            info = ServerInfo()
        gauges = now or Snapshot()
        old = self._percentile_base(look)
        slots_used, slots_total, slots_evictable = _slots(gauges, info)
        decode = self._rate(lambda x: x.metrics.decoded if x.metrics else None)
        prefill = self._rate(lambda x: x.metrics.prefill_computed if x.metrics else None)
        if now is None:
            decode = loads.total("gen_throughput") if loads.total("num_running_reqs") else _zero_if(loads.loads)
            prefill = self._rate(lambda x: _uncached(x.loads))
        admitted = loads.total("max_running_requests")
        if admitted is None:
            admitted = info.total("effective_max_running_requests_per_dp")
        caches = 1 if now is None or now.evictions_by_rank else info.ranks_per_replica
        evicted = self._rate(lambda x: x.metrics.evicted_tokens / caches if x.metrics else None)
        running = _first(loads.total("num_running_reqs"), gauges.running)
        anew = self._anew(look.at)
        return Readings(
            at=look.at,
            metrics=metrics_reach,
            loads=loads_reach,
            # The gauges keep the last batch's values when the server falls idle; /v1/loads does not.
            kv_used_tokens=_whole(_first(loads.total("num_used_tokens"), gauges.kv_used)),
            kv_total_tokens=_whole(
                _first(
                    gauges.kv_total,
                    loads.total("max_total_num_tokens"),
                    _kv_sum(gauges),
                    info.max_total_num_tokens,
                )
            ),
            kv_evictable_tokens=_whole(gauges.kv_evictable),
            slots_used=slots_used,
            slots_total=slots_total,
            slots_evictable=slots_evictable,
            running=_whole(running),
            queued=_whole(_first(loads.total("num_waiting_reqs"), gauges.queued)),
            max_running_requests=_whole(admitted),
            decode_tokens_per_s=decode,
            prefill_tokens_per_s=prefill,
            ttft_s=spread(old.ttft, now.ttft) if now and old else None,
            itl_s=spread(old.itl, now.itl) if now and old else None,
            e2e_s=spread(old.e2e, now.e2e) if now and old else None,
            queue_s=spread(old.queue, now.queue) if now and old else None,
            prefix_hit_ratio=_prefix_hit_ratio(gauges),
            acceptance_length=gauges.acceptance_length or loads.acceptance_length,
            evicted_tokens=_whole(now.evicted_tokens / caches) if now else None,
            eviction_seconds=now.eviction_seconds / caches if now else None,
            evicted_tokens_per_s=evicted if now else None,
            retracted_requests=_whole(now.retracted) if now else None,
            aborted_requests=_whole(now.aborted) if now else None,
            stalled=look.stall,
            stalled_seconds=self._stalled_seconds(look.at) if now else None,
            stale=_stale(now, look.loads, running),
            answered_s=answered_s,
            began_anew_s=anew,
            notice=notice(metrics_reach, loads_reach, self._key_variable, answered_s=answered_s, began_anew_s=anew),
        )

    def _anew(self, at: float) -> float | None:
        if self._began_anew_at is None or at - self._began_anew_at > self._kept_s:
            return None
        return max(0.0, at - self._began_anew_at)

    def _stalled_seconds(self, at: float) -> float:
        inside = (x for x in self._looks if x.at > at - self._kept_s)
        return sum((x.step.seconds for x in inside if x.stall and x.step), 0.0)

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


def _uncached(loads: Loads | None) -> float | None:
    return loads.total("total_prefill_uncached_tokens") if loads else None


def _stale(now: Snapshot | None, loads: Loads | None, running: float | None) -> tuple[str, ...]:
    """Fields that an idle server has not refreshed; a value of 0 is right whenever it is told."""
    if now is None or running != 0:
        return ()
    gauges = {
        "kv_evictable_tokens": now.kv_evictable,
        "slots_used": now.slots_used if now.slots_used is not None else now.mamba_usage,
        "slots_evictable": now.slots_evictable,
        "acceptance_length": now.acceptance_length,
    }
    kept = tuple(name for name in _KEPT_WHEN_IDLE if gauges[name])
    fresh = loads is not None and loads.total("num_used_tokens") is not None
    return kept if fresh or not now.kv_used else ("kv_used_tokens", *kept)


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
    """Cached share of the prompt tokens since the server started.

    0.5.23: what a retraction makes it compute again apart. 0.5.9 and later: per batch. Before: per finished request.
    """
    hits = gauges.effective_device_hit + gauges.effective_host_hit + gauges.effective_storage_hit
    if hits + gauges.effective_input:
        return hits / (hits + gauges.effective_input)
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
    return None if value is None or not abs(value) < MOST else round(value)
