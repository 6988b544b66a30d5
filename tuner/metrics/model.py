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
    slots_used: int | None = None
    slots_total: int | None = None
    slots_evictable: int | None = None
    running: int | None = None
    queued: int | None = None
    max_running_requests: int | None = None
    decode_tokens_per_s: float | None = None
    prefill_tokens_per_s: float | None = None
    ttft_s: Spread | None = None
    itl_s: Spread | None = None
    e2e_s: Spread | None = None
    #: Cached / (cached + computed) prompt tokens since the server started.
    prefix_hit_ratio: float | None = None
    acceptance_length: float | None = None
    evicted_tokens: int | None = None
    retracted_requests: int | None = None
    aborted_requests: int | None = None
    #: One sentence when something that should be here is missing, with the flag or variable to set.
    notice: str = ""


class GpuProcess(msgspec.Struct, frozen=True, kw_only=True):
    """One process on a GPU; ``memory_mib`` is None where the driver does not tell."""

    pid: int
    memory_mib: int | None = None
    name: str | None = None


class GpuReading(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU at one moment. None: the driver does not tell."""

    index: int
    uuid: str | None = None
    name: str | None = None
    total_mib: int | None = None
    used_mib: int | None = None
    free_mib: int | None = None
    utilisation: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    processes: tuple[GpuProcess, ...] = ()
    simulated: bool = False
