"""One answer of ``/v1/loads`` and the few values of ``/server_info`` that readings need."""

from __future__ import annotations

from typing import Any

import msgspec

from tuner.metrics.snapshot import is_told


class Speculative(msgspec.Struct, frozen=True, kw_only=True):
    """Section ``speculative``: there from the first verify step on."""

    accept_length: float | None = None


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """One DP rank. ``num_used_tokens`` is the KV pool's; no version reports state slots here."""

    num_running_reqs: float | None = None
    num_waiting_reqs: float | None = None
    num_used_tokens: float | None = None
    max_total_num_tokens: float | None = None
    max_running_requests: float | None = None
    gen_throughput: float | None = None
    #: Cumulative, 0.5.17 and later.
    total_prefill_uncached_tokens: float | None = None
    speculative: Speculative | None = None


class Loads(msgspec.Struct, frozen=True, kw_only=True):
    """The answer: one entry per DP rank (0.5.9 and later)."""

    loads: tuple[Load, ...]

    def total(self, field: str) -> float | None:
        """Sum of a field over the ranks that have it."""
        values = [v for load in self.loads if (v := getattr(load, field)) is not None and is_told(v)]
        return sum(values) if values else None

    @property
    def acceptance_length(self) -> float | None:
        """Mean acceptance length of the ranks that speculate."""
        found = (load.speculative.accept_length for load in self.loads if load.speculative)
        lengths = [length for length in found if length and is_told(length)]
        return sum(lengths) / len(lengths) if lengths else None


class InternalState(msgspec.Struct, frozen=True, kw_only=True):
    """Of ``internal_states``, one per DP rank: what is in effect, not what was asked."""

    max_mamba_cache_size: int | None = None
    effective_max_running_requests_per_dp: int | None = None


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Of ``/server_info``."""

    internal_states: tuple[InternalState, ...] = ()
    max_total_num_tokens: int | None = None
    tp_size: int | None = None
    pp_size: int | None = None
    dp_size: int | None = None
    enable_dp_attention: bool | None = None

    @property
    def ranks_per_replica(self) -> int:
        """Schedulers that hold the same prefix cache, each its own share of every token."""
        tensor = max(1, self.tp_size or 1)
        if self.enable_dp_attention:
            tensor = max(1, tensor // max(1, self.dp_size or 1))
        return tensor * max(1, self.pp_size or 1)

    def total(self, field: str) -> int | None:
        """Sum of a field over the DP ranks that have it."""
        values = [v for state in self.internal_states if (v := getattr(state, field)) is not None and is_told(v)]
        return sum(values) if values else None


def read_loads(answer: dict[str, Any]) -> Loads | None:
    """The answer of ``/v1/loads``; None when it is something else."""
    try:
        loads = msgspec.convert(answer, Loads)
    except msgspec.ValidationError:
        return None
    return loads if loads.loads else None


def read_server_info(answer: dict[str, Any] | None) -> ServerInfo:
    """The answer of ``/server_info``; empty when it is something else."""
    try:
        return msgspec.convert(answer or {}, ServerInfo)
    except msgspec.ValidationError:
        return ServerInfo()
