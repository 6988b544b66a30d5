"""Readings of a running server, named as in the field and the same in UI, JSON and history."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Reach(StrEnum):
    """Whether a source answered."""

    OK = "ok"
    OFF = "off"
    LOCKED = "locked"
    UNREACHABLE = "unreachable"
    NONSENSE = "nonsense"


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Percentiles of a histogram's window, in seconds, with the number of observations behind them."""

    p50: float
    p95: float
    count: int


class Readings(msgspec.Struct, frozen=True, kw_only=True):
    """One look at the server. None: the source has no such number. Tokens, slots, seconds, tokens/s, ratios 0..1."""

    at: float
    metrics: Reach = Reach.UNREACHABLE
    loads: Reach = Reach.UNREACHABLE
    kv_used_tokens: int | None = None
    kv_total_tokens: int | None = None
    kv_evictable_tokens: int | None = None
    #: State slots of running requests, and apart from them those that only the prefix cache holds.
    slots_used: int | None = None
    slots_total: int | None = None
    slots_evictable: int | None = None
    running: int | None = None
    queued: int | None = None
    #: The admitted limit, over all DP ranks: what the server lets run at once, whatever was asked.
    max_running_requests: int | None = None
    decode_tokens_per_s: float | None = None
    prefill_tokens_per_s: float | None = None
    ttft_s: Spread | None = None
    itl_s: Spread | None = None
    e2e_s: Spread | None = None
    #: Time in the queue.
    queue_s: Spread | None = None
    #: Cached / (cached + computed) prompt tokens since the server started.
    prefix_hit_ratio: float | None = None
    acceptance_length: float | None = None
    #: Since the server started, one cache of each replica: KV tokens thrown out, and the time that took. No version
    #: counts evicted states (0.5.9 to 0.5.23, ``mem_cache/base_prefix_cache.py``, ``update_eviction_metrics``).
    evicted_tokens: int | None = None
    eviction_seconds: float | None = None
    evicted_tokens_per_s: float | None = None
    #: Since the server started.
    retracted_requests: int | None = None
    aborted_requests: int | None = None
    #: Whether decode is far below its median now while prefill runs, and for how much of the window it was.
    stalled: bool = False
    stalled_seconds: float | None = None
    #: Fields whose value is that of the last batch: the server does not refresh these gauges while it is idle.
    stale: tuple[str, ...] = ()
    #: How long the slower of the two answers took; None when none came.
    answered_s: float | None = None
    #: How long ago the counters began anew, while that is within the window.
    began_anew_s: float | None = None
    #: One sentence when something that should be here is missing, with the flag or variable to set.
    notice: str = ""


class GpuProcess(msgspec.Struct, frozen=True, kw_only=True):
    """One process on a GPU; ``memory_mib`` is None where the driver does not tell."""

    pid: int
    memory_mib: int | None = None
    name: str | None = None


class GpuInstance(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a GPU that is cut up by MIG, memory in MiB. None: the driver does not tell."""

    uuid: str | None = None
    name: str | None = None
    total_mib: int | None = None
    used_mib: int | None = None


class GpuReading(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU at one moment; memory in MiB, clocks in MHz, power in W, percent of the time. None: not told."""

    index: int
    uuid: str | None = None
    name: str | None = None
    total_mib: int | None = None
    used_mib: int | None = None
    free_mib: int | None = None
    utilisation: int | None = None
    #: Share of the time in which its memory was read or written.
    memory_busy: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: int | None = None
    clock_mhz: int | None = None
    clock_max_mhz: int | None = None
    memory_clock_mhz: int | None = None
    #: Why its clock is held down, in a few words each; None: the driver does not tell.
    throttled: tuple[str, ...] | None = None
    #: Empty unless MIG is on.
    instances: tuple[GpuInstance, ...] = ()
    processes: tuple[GpuProcess, ...] = ()
    simulated: bool = False
