"""What the tuner has to tell an operator: one finding, from whichever part of the tuner saw it.

The ids are stable: scripts match on them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec


class Severity(StrEnum):
    """How bad a finding is. ``FATAL`` stops a start, ``WARNING`` is worth acting on, ``NOTE`` is only said."""

    FATAL = "fatal"
    WARNING = "warning"
    NOTE = "note"


class FindingId(StrEnum):
    """Stable names of everything that can be found."""

    REQUESTS_CAPPED_BY_SLOTS = "requests-capped-by-slots"
    RATIO_MISFIT = "ratio-misfit"
    POOL_BELOW_CONTEXT = "pool-below-context"
    NO_ROOM_AT_SIZING = "no-room-at-sizing"
    SLOTS_NEGATIVE = "slots-negative"
    OOM_IN_POOLS = "oom-in-pools"
    OOM_IN_CAPTURE = "oom-in-capture"
    OOM_WHILE_SERVING = "oom-while-serving"
    HOST_MEMORY_KILL = "host-memory-kill"
    KERNEL_CRASH = "kernel-crash"
    PORT_IN_USE = "port-in-use"
    GPU_BUSY = "gpu-busy"
    DOUBLE_START = "double-start"
    METRICS_OFF = "metrics-off"
    PEER_ACCESS = "peer-access"
    TOOL_CHAIN_MISSING = "tool-chain-missing"
    MODULE_MISSING = "module-missing"
    UNKNOWN_FLAG = "unknown-flag"
    FLAG_CONFLICT = "flag-conflict"
    SPEC_EATS_POOL = "spec-eats-pool"
    PREFIX_CACHE_OFF = "prefix-cache-off"
    STATES_NOT_HYBRID = "states-not-hybrid"
    KV_SCALE_MISSING = "kv-scale-missing"
    SLOT_ASSERT = "slot-assert"
    PD_MISMATCH = "pd-mismatch"
    HICACHE_HOST_MEMORY = "hicache-host-memory"
    ASKED_NOT_EFFECTIVE = "asked-not-effective"
    PHYSICS_NOT_CONFIG = "physics-not-config"
    LOW_HEADROOM = "low-headroom"
    MODEL_MISSING = "model-missing"
    DRIVER_OLD = "driver-old"
    SECRET_MISSING = "secret-missing"  # noqa: S105
    OOM_WHILE_LOADING = "oom-while-loading"
    CHECKPOINT_UNFIT = "checkpoint-unfit"
    GPU_MISSING = "gpu-missing"
    SHARED_MEMORY_FULL = "shared-memory-full"
    PROXY_IN_THE_WAY = "proxy-in-the-way"
    UPSTREAM_FAULT = "upstream-fault"
    SILENT_END = "silent-end"
    HANG = "hang"
    BUSY = "busy"
    PARSER_MISMATCH = "parser-mismatch"
    MEMORY_IDLE = "memory-idle"
    REQUESTS_QUEUE = "requests-queue"
    SLOTS_PINNED = "slots-pinned"
    SLOT_LEAK = "slot-leak"
    CACHE_THRASH = "cache-thrash"
    DRAFTS_REJECTED = "drafts-rejected"
    GPU_THROTTLED = "gpu-throttled"
    BEHIND_LAUNCHER = "behind-launcher"
    UNKNOWN = "unknown"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing found, with its evidence and what to do about it.

    ``evidence`` holds log lines or numbers as the operator would see them; ``remedy`` is one sentence;
    ``flags`` is the change to the recipe that the remedy means (underscore names), empty when none helps.
    """

    id: FindingId
    severity: Severity
    title: str
    evidence: tuple[str, ...] = ()
    remedy: str = ""
    flags: dict[str, Any] = {}
