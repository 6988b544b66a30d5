"""What goes into a plan and what comes out of it. Pure data; sizes are per rank."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

import msgspec

from tuner.findings import Finding
from tuner.modelcard import ModelShape

GIB = 1 << 30

#: Free memory is read at the end of "Init torch distributed" and never printed; the printed
#: "Load weight begin. avail mem" is this much smaller (SGLang 0.5.17 on one H200, GiB).
STARTUP_LOSS_GIB = 0.066
#: So much more of it where the model has experts (0.5.17 on one H200: 139.03 GiB were free before the weights of an
#: 80B MoE, 139.13 before those of two models without). Between the two readings only the map of the experts is made on
#: the card (``ModelRunner.initialize``, ``compute_initial_expert_location_metadata``).
EXPERTS_STARTUP_LOSS_GIB = 0.10
#: Free GiB at ready that a start should leave unless set: loading and capture peak above the steady state, and long
#: prompts need room beside the pools (field report of fifteen rounds on 48 GB).
HEADROOM_GIB = 4.4
#: Free GiB at the lowest point of a start below which it is called near to an end: one that takes as much ends it.
LEAST_FREE_GIB = 0.4
#: The lowest that a start came up from (0.5.17, 27B with MTP, between the draft's pool and the return of its
#: vocabulary; two others from 0.44).
LOWEST_SEEN_GIB = 0.31
#: While the largest graphs are captured, this times what they take in the end is held (0.5.17, 27B: the card's own
#: readings came to 2.65 GiB for 1.68).
CAPTURE_PEAK = 1.57
#: What a server still takes between its summary line and the card's own reading at ready (same recordings, GiB).
AFTER_SUMMARY_GIB = 0.06
#: What the CUDA context of a start takes before that first reading (same recordings, GiB).
CONTEXT_GIB = 0.604


def usual_startup_loss(shape: ModelShape) -> float:
    """GiB that a start takes between its reading of free memory and the line that prints it, where no log tells."""
    return STARTUP_LOSS_GIB + (EXPERTS_STARTUP_LOSS_GIB if shape.experts else 0.0)


class Source(StrEnum):
    """Where a number comes from, best first."""

    OPERATOR = "operator"
    BOOT_LOG = "boot log"
    MEASURED = "measured"
    ESTIMATE = "estimate"
    #: Worked out from the others by SGLang's own rule.
    FORMULA = "formula"


class Sourced(msgspec.Struct, frozen=True):
    """A number of GiB with its source."""

    gib: float
    source: Source


class PlanInputs(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a plan needs. ``flags`` are SGLang flags by underscore name, as asked.

    The best known number stands here: what the operator says, what a boot log said, what can be read on this machine,
    an estimate. ``free_before`` is the "avail mem" of the first "Load weight begin" line; ``free_after`` that of the
    last "Load weight end" line before the pools (with a draft model that is the draft's on 0.5.17).
    """

    shape: ModelShape
    flags: dict[str, Any]
    sglang_version: str = "0.5.17"
    free_before: Sourced
    free_after: Sourced
    #: Whether a draft's weights are already out of ``free_after``; None: exactly when ``flags`` speculate.
    #: Whoever then turns speculation on or off lays this down first (``forward.pin_draft``).
    free_after_has_draft: bool | None = None
    #: Draft weights at sizing; None: the shape's estimate.
    draft_weights: Sourced | None = None
    startup_loss_gib: float = STARTUP_LOSS_GIB
    #: Memory of the whole card in GiB; None when not known. Only defaults of flags depend on it.
    card_gib: float | None = None
    #: Graph memory by part, from a boot log; None: the planner estimates.
    graphs_gib: float | None = None
    #: Weights (embedding and head of the draft) that come back after sizing, GiB; None: estimate.
    draft_returned_gib: float | None = None
    #: Name of the round whose boot log calibrates this plan ("r3"), or None.
    calibrated_by: str | None = None
    headroom_line_gib: float = HEADROOM_GIB
    #: Environment of the start: a few SGLANG_* variables change the sizing.
    environment: dict[str, str] = {}
    #: Memory taken between the last "Load weight end" and the sizing, GiB (calibrated).
    sizing_loss_gib: float = 0.0
    #: Memory of the process outside weights, pools and graphs at ready, without what grows with the tokens
    #: (GiB, calibrated); None: estimate.
    runtime_gib: float | None = None
    #: What the planner guessed for the graphs that ``graphs_gib`` was measured on: other sizes scale with the guess.
    graphs_guess_gib: float | None = None
    #: Of both, the prefill graphs; 0 where none were captured, None where the log does not tell the parts.
    prefill_graphs_gib: float | None = None
    prefill_graphs_guess_gib: float | None = None
    #: While the largest graphs are captured, this times what they take in the end is held; 1: not looked at.
    capture_peak: float = 1.0
    #: CUDA context before the first reading, GiB.
    context_gib: float = CONTEXT_GIB
    context_source: Source = Source.ESTIMATE
    #: Where ``sglang_version`` comes from, in words; "" when nobody says.
    version_source: str = ""
    #: Why the boot log of an earlier round does not calibrate this plan, or how it was moved; one sentence or "".
    calibration_note: str = ""
    #: Measured bytes of a slot and of a token, where a boot log contradicts the shape; None: by the formula.
    bytes_per_slot: int | None = None
    bytes_per_token: int | None = None
    #: Draft layers that a boot log has shown in the KV cell; None: by the formula.
    draft_layers_in_cell: int | None = None


class Term(msgspec.Struct, frozen=True, kw_only=True):
    """One named share of the card's memory, in GiB."""

    name: str
    label: str
    gib: float
    source: Source = Source.ESTIMATE


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a start would give. Field names are those of ``tuner plan --json``."""

    fits: bool
    binds: Literal["kv", "mamba", "requests"]
    basis: Literal["formula", "calibrated"]
    mamba_slots: int
    kv_tokens: int
    max_running_requests: int
    slots_per_request: int
    bytes_per_slot: int
    bytes_per_token: int
    mamba_gib: float
    kv_gib: float
    spec_buffer_gib: float
    reserve_gib: float
    longest_input_tokens: int
    context_len: int
    #: Free GiB at ready and at the lowest point of the start.
    ready_free_gib: float
    lowest_free_gib: float
    headroom_line_gib: float
    #: Terms of the VRAM bar in drawing order, free memory last ("free").
    terms: tuple[Term, ...]
    #: Where each input comes from: {"free_before": "boot log", ...}
    sources: dict[str, str]
    calibrated_by: str | None = None
    sglang_version: str = "0.5.17"
    version_note: str = ""
    calibration_note: str = ""
    #: Printed memory has two decimals; these are the pools at both ends of what that allows. None when the numbers
    #: are exact (calibrated), or so rough (measured here, estimated) that two decimals say nothing.
    mamba_slots_low: int | None = None
    mamba_slots_high: int | None = None
    kv_tokens_low: int | None = None
    kv_tokens_high: int | None = None
    #: Free GiB before and after the weights, as planned with.
    free_before_gib: float | None = None
    free_after_gib: float | None = None
    startup_loss_gib: float = STARTUP_LOSS_GIB
    card_gib: float | None = None
    requests_asked: int | None = None
    strategy: str = ""
    #: A request prefilled in chunks takes two of the requests admitted (``admission.counts_twice``).
    chunk_counts_twice: bool = True
    #: KV tokens that a running request holds ahead of its answer.
    decode_ahead_tokens: int = 1
    #: What SGLang would refuse the start with, one sentence; "" when it starts.
    refusal: str = ""
    #: Values that SGLang fills in or resolves: {"mem_fraction_static": 0.83, ...}
    in_force: dict[str, Any] = {}
    findings: tuple[Finding, ...] = ()


class CannotPlan(Exception):
    """A model, a flag or an input that no plan can be made from; the message is one sentence for the operator."""
