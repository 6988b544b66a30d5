"""What a server log says. Pure data; "GB" in SGLang's lines means GiB."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from tuner.findings import Finding


class Phase(StrEnum):
    """How far a start has come, in order. ``DEAD`` after a fatal line, ``STOPPED`` after a wanted stop."""

    LAUNCHING = "launching"
    LOADING = "loading weights"
    SIZING = "sizing pools"
    CAPTURING = "capturing graphs"
    BINDING = "opening port"
    WARMING = "warming up"
    READY = "ready"
    STOPPING = "stopping"
    STOPPED = "stopped"
    DEAD = "dead"


class DraftFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The draft model's own lines."""

    model_class: str | None = None
    weights_gib: float | None = None
    kv_tokens: int | None = None
    kv_gib: float | None = None


class BootFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of one start. A field is None when its line has not come. Names are those of ``tuner log --json``."""

    #: As printed, or what the spellings of the lines allow ("0.5.17").
    version: str | None = None
    phase: Phase = Phase.LAUNCHING
    #: The furthest point of the start, also after its end: where a start died.
    reached: Phase = Phase.LAUNCHING
    #: It came up and did not die: the ready line and the open port, in any order. A wanted stop leaves it true.
    ready: bool = False
    #: Class of the target model, as loaded ("Qwen3_5ForCausalLM").
    model_class: str | None = None
    free_before_gib: float | None = None
    free_after_gib: float | None = None
    mamba_slots: int | None = None
    kv_tokens: int | None = None
    max_running_requests: int | None = None
    context_len: int | None = None
    chunked_prefill_size: int | None = None
    max_prefill_tokens: int | None = None
    #: Free memory of the summary line: after graphs, GiB.
    available_gib: float | None = None
    #: After the target's pools, after the draft's pools, at the first capture, GiB.
    free_after_pools_gib: float | None = None
    free_after_draft_pools_gib: float | None = None
    free_before_graphs_gib: float | None = None
    conv_state_gib: float | None = None
    ssm_state_gib: float | None = None
    spec_state_gib: float | None = None
    spec_conv_gib: float | None = None
    kv_gib: float | None = None
    kv_dtype: str | None = None
    draft: DraftFacts | None = None
    #: {"target": 27.54, "draft": 5.53}
    weights_gib: dict[str, float] = {}
    #: {"prefill": 1.68, "target_verify": 0.10, "draft_extend": 0.08}
    graphs_gib: dict[str, float] = {}
    #: Seconds by phase, from "Engine startup timings" and, before it, from time stamps.
    timings: dict[str, float] = {}
    tree_cache: str | None = None
    hybrid: bool | None = None
    #: Values of ``server_args=`` that matter, secrets left out.
    server_args: dict[str, str] = {}
    slots_per_request: int | None = None
    requests_capped_to: int | None = None
    http_url: str | None = None
    stop_asked: bool = False
    #: Warnings, exceptions and signals that a diagnosis may need, in order, each once.
    notable: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()


class BatchLine(msgspec.Struct, frozen=True, kw_only=True):
    """One "Prefill batch" or "Decode batch" line."""

    kind: str
    at: str | None = None
    running: int = 0
    queued: int = 0
    new_tokens: int | None = None
    cached_tokens: int | None = None
    kv_tokens: int | None = None
    kv_usage: float | None = None
    mamba_slots: int | None = None
    mamba_usage: float | None = None
    acceptance_length: float | None = None
    acceptance_rate: float | None = None
    graph: bool | None = None
    tokens_per_s: float | None = None


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One log record: time stamp and ranks cut off, escape sequences removed."""

    at: str | None
    ranks: str
    text: str
