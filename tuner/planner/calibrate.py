"""One start's boot log makes the planner's constants exact.

The rule computes ``rest = free_at_sizing - pre * (1 - fraction)`` from numbers that the log prints with two decimals
(or, ``pre``, not at all), and prints tokens and slots, which tell ``rest`` to within one token's bytes. The difference
is laid where it can come from: the rounding of the two printed numbers and the loss before the first of them, each by
how much the fraction lets it count, so that the constants hold at another fraction too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import msgspec

from tuner.planner.asked import ALIASES
from tuner.planner.budget import RUNTIME_BYTES_PER_TOKEN, Pieces
from tuner.planner.forward import charged_for
from tuner.planner.graphs import captured_sizes, guess_gib
from tuner.planner.model import AFTER_SUMMARY_GIB, GIB, CannotPlan, PlanInputs, Source, Sourced
from tuner.planner.pieces import pieces_at
from tuner.planner.resolve import Resolved, resolve

#: A printed GiB may be off by half its last decimal.
_ROUNDING_GIB = 0.005
#: How far each cause is likely to be off: a rounded number, and the loss before the first
#: reading (0.065 to 0.2 seen).
_SIGMA_ROUNDING, _SIGMA_LOSS = 0.003, 0.02
#: The loss never lies outside this (reference: 0.065 to 0.2 GiB).
_LOSS_RANGE = (0.0, 0.4)
#: A log whose pools are further off than this belongs to other flags or another model.
_LARGEST_SURPRISE_GIB = 1.5
#: Printed bytes of a slot or token that differ more than this from the shape's are of another model.
_LARGEST_BYTES_FACTOR = 1.35
#: A CUDA context takes no less and no more: outside of it something else on the card has changed meanwhile.
_CONTEXT_RANGE = (0.2, 2.5)
#: The same for what a process holds beside everything named (a large expert model: its workspaces).
_RUNTIME_RANGE = (-0.5, 6.0)
#: Flags that the sizing reads: where the log echoes them, the log is right about what was started.
_SIZING_FLAGS = (
    "mem_fraction_static",
    "kv_cache_dtype",
    "max_running_requests",
    "max_total_tokens",
    "chunked_prefill_size",
    "page_size",
    "disable_radix_cache",
    "disable_overlap_schedule",
    "mamba_ssm_dtype",
    "mamba_full_memory_ratio",
    "max_mamba_cache_size",
    "mamba_radix_cache_strategy",
    "speculative_algorithm",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
    "speculative_draft_model_path",
    "tp_size",
    "pp_size",
    "dp_size",
    "enable_dp_attention",
    "enable_unified_memory",
    "enable_linear_replayssm_spec",
)


class BootLog(Protocol):
    """What a boot log tells, as ``tuner.serverlog`` reads it. None: the line did not come. GiB."""

    @property
    def free_before_gib(self) -> float | None: ...
    @property
    def free_after_gib(self) -> float | None: ...
    @property
    def mamba_slots(self) -> int | None: ...
    @property
    def kv_tokens(self) -> int | None: ...
    @property
    def max_running_requests(self) -> int | None: ...
    @property
    def available_gib(self) -> float | None: ...
    @property
    def free_after_draft_pools_gib(self) -> float | None: ...
    @property
    def free_before_graphs_gib(self) -> float | None: ...
    @property
    def conv_state_gib(self) -> float | None: ...
    @property
    def ssm_state_gib(self) -> float | None: ...
    @property
    def kv_gib(self) -> float | None: ...
    @property
    def weights_gib(self) -> dict[str, float]: ...
    @property
    def graphs_gib(self) -> dict[str, float]: ...
    @property
    def server_args(self) -> dict[str, str]: ...


def calibrate(
    inputs: PlanInputs,
    facts: BootLog,
    *,
    name: str = "the boot log",
    own_share_gib: float | None = None,
    free_before_start_gib: float | None = None,
) -> PlanInputs:
    """``inputs`` with exact constants from the boot log of a start with ``inputs.flags``; the flags stay.

    ``own_share_gib`` is the server's share of the card at ready (NVML at ready less before the start), which makes
    the runtime term exact; ``free_before_start_gib`` is what NVML called free before the start, which does the same for
    the context. Where the log echoes a flag, the log is believed. A log that ends before the pools gives its free
    memory and weights alone, and ``calibrated_by`` stays None. Raises CannotPlan with one sentence when the log has no
    free memory or cannot be of this model.
    """
    if facts.free_before_gib is None or facts.free_after_gib is None:
        raise CannotPlan(f"{name} has no free memory before and after the weights: it cannot calibrate a plan.")
    booted = msgspec.structs.replace(
        inputs,
        flags=_booted_flags(inputs.flags, facts.server_args),
        free_before=Sourced(facts.free_before_gib, Source.BOOT_LOG),
        free_after=Sourced(facts.free_after_gib, Source.BOOT_LOG),
        free_after_has_draft=None,
        draft_weights=_draft_weights(inputs, facts),
        graphs_gib=None,
        prefill_graphs_gib=None,
        prefill_graphs_guess_gib=None,
        runtime_gib=None,
        sizing_loss_gib=0.0,
        bytes_per_slot=None,
        bytes_per_token=None,
        draft_layers_in_cell=None,
        draft_returned_gib=None,
        calibrated_by=name,
    )
    resolved = resolve(booted)
    booted = msgspec.structs.replace(
        booted,
        free_after_has_draft=bool(resolved.draft) and resolved.rules.draft_before_pools,
        bytes_per_slot=_slot_seen(resolved, facts),
        bytes_per_token=_token_seen(resolved, facts),
    )
    if not facts.kv_tokens:
        return msgspec.structs.replace(booted, flags=inputs.flags, calibrated_by=None)
    booted = _fit_rest(booted, facts)
    booted = _fit_draft_return(booted, facts)
    booted = _fit_graphs(booted, facts)
    if free_before_start_gib is not None:
        pre = booted.free_before.gib + booted.startup_loss_gib
        context = free_before_start_gib - pre
        if _CONTEXT_RANGE[0] <= context <= _CONTEXT_RANGE[1]:
            booted = msgspec.structs.replace(booted, context_gib=context, context_source=Source.MEASURED)
    booted = _fit_runtime(booted, facts, own_share_gib)
    return msgspec.structs.replace(booted, flags=inputs.flags)


def _booted_flags(flags: Mapping[str, Any], echoed: Mapping[str, str]) -> dict[str, Any]:
    """The flags of the start that wrote the log: for the sizing flags, what ``server_args=`` says."""
    if not echoed:
        return dict(flags)
    merged = dict(flags)
    for key in _SIZING_FLAGS:
        for alias in (key, *ALIASES.get(key, ())):
            merged.pop(alias, None)
        value = next((echoed[alias] for alias in (key, *ALIASES.get(key, ())) if alias in echoed), None)
        if value not in (None, "None", ""):
            merged[key] = value
    return merged


def _draft_weights(inputs: PlanInputs, facts: BootLog) -> Sourced | None:
    """The draft's weights: the printed number, or the finer one known before when the rounding allows it."""
    printed = facts.weights_gib.get("draft")
    if printed is None:
        return inputs.draft_weights
    resolved = resolve(msgspec.structs.replace(inputs, free_after_has_draft=True))
    finer = inputs.shape.draft_weights_bytes / GIB / (resolved.asked.tp * resolved.asked.pp)
    if inputs.draft_weights is not None:
        finer = inputs.draft_weights.gib
    return Sourced(finer if abs(finer - printed) <= 2 * _ROUNDING_GIB else printed, Source.BOOT_LOG)


def _slot_seen(resolved: Resolved, facts: BootLog) -> int | None:
    """Bytes of a slot where the printed sizes (of slots + 1) contradict the shape; None where they agree."""
    if resolved.cost is None or facts.mamba_slots is None:
        return None
    if facts.conv_state_gib is None or facts.ssm_state_gib is None:
        return None
    rows = facts.mamba_slots + 1
    printed = facts.conv_state_gib + facts.ssm_state_gib
    if printed <= 0 or abs(printed - rows * resolved.cost.slot / GIB) <= 2 * _ROUNDING_GIB + 1e-6:
        return None
    return _plausible(int(printed * GIB / rows), resolved.cost.slot, "state slot", resolved)


def _token_seen(resolved: Resolved, facts: BootLog) -> int | None:
    """Bytes of a token where the printed KV size contradicts the shape; None where they agree."""
    if not facts.kv_tokens or not facts.kv_gib:
        return None
    rows = facts.kv_tokens + resolved.strategy.page_size
    if abs(facts.kv_gib - rows * resolved.token.target / GIB) <= 2 * _ROUNDING_GIB + 1e-6:
        return None
    return _plausible(round(facts.kv_gib * GIB / rows), resolved.token.target, "token", resolved)


def _plausible(seen: int, expected: int, what: str, resolved: Resolved) -> int:
    if not expected / _LARGEST_BYTES_FACTOR <= seen <= expected * _LARGEST_BYTES_FACTOR:
        raise CannotPlan(
            f"{resolved.inputs.calibrated_by} has {seen:,} bytes for a {what}, this model takes {expected:,}: "
            "the log belongs to another model or to other flags."
        )
    return seen


def _rest_seen(resolved: Resolved, facts: BootLog) -> float | None:
    """The rest memory R in GiB that gives the printed slots and tokens; None when the log does not tell it."""
    tokens = facts.kv_tokens
    if not tokens or tokens == resolved.asked.max_total_tokens:
        return None
    kv_bytes = tokens * resolved.token.sizing + resolved.token.sizing * resolved.strategy.page_size / 2
    if resolved.cost is None:
        return kv_bytes / GIB
    if facts.mamba_slots is None:
        return None
    split = charged_for(resolved, facts.mamba_slots)
    return (kv_bytes + split.states_charged + split.spec_reserved) / GIB


def _fit_rest(inputs: PlanInputs, facts: BootLog) -> PlanInputs:
    """Lays the difference between the printed and the real rest memory where it can come from."""
    best: tuple[float, PlanInputs, Resolved] | None = None
    for candidate in _draft_layer_guesses(inputs):
        resolved = resolve(candidate)
        seen = _rest_seen(resolved, facts)
        if seen is None:
            return inputs
        difference = seen - resolved.rest
        if best is None or abs(difference) + 0.05 < abs(best[0]):
            best = (difference, candidate, resolved)
    assert best is not None
    difference, chosen, resolved = best
    if abs(difference) > _LARGEST_SURPRISE_GIB:
        raise CannotPlan(
            f"{inputs.calibrated_by} has pools that these flags do not give on this model "
            f"({difference:+.2f} GiB): it belongs to another start."
        )
    kept = 1 - resolved.defaults.fraction
    after, before, loss, sizing = _spread(difference, kept, chosen.startup_loss_gib)
    return msgspec.structs.replace(
        chosen,
        free_before=Sourced(chosen.free_before.gib + before, Source.BOOT_LOG),
        free_after=Sourced(chosen.free_after.gib + after, Source.BOOT_LOG),
        startup_loss_gib=chosen.startup_loss_gib + loss,
        sizing_loss_gib=sizing,
    )


def _draft_layer_guesses(inputs: PlanInputs) -> Iterator[PlanInputs]:
    """The formula's own count of draft layers in the cell first, then the others that SGLang may have taken."""
    yield inputs
    resolved = resolve(inputs)
    if resolved.draft:
        for layers in sorted({0, 1, inputs.shape.draft_layers, inputs.shape.layers}):
            if layers != resolved.token.draft_layers_charged:
                yield msgspec.structs.replace(inputs, draft_layers_in_cell=layers)


def _spread(difference: float, kept: float, loss: float) -> tuple[float, float, float, float]:
    """(free_after, free_before, startup loss, sizing loss) changes that make ``rest`` larger by ``difference``.

    Least squares over what each may be off by, within the rounding; what is left is memory taken before sizing.
    """
    left = difference
    changes = [0.0, 0.0, 0.0]
    weights = (1.0, -kept, -kept)
    sigmas = (_SIGMA_ROUNDING, _SIGMA_ROUNDING, _SIGMA_LOSS)
    limits = (
        (-_ROUNDING_GIB, _ROUNDING_GIB),
        (-_ROUNDING_GIB, _ROUNDING_GIB),
        (_LOSS_RANGE[0] - loss, _LOSS_RANGE[1] - loss),
    )
    free = [0, 1, 2]
    while free:
        norm = sum((sigmas[i] * weights[i]) ** 2 for i in free)
        if norm <= 0 or abs(left) < 1e-12:
            break
        steps = {i: sigmas[i] ** 2 * weights[i] * left / norm for i in free}
        outside = [i for i in free if not limits[i][0] <= changes[i] + steps[i] <= limits[i][1]]
        for i in outside or free:
            low, high = limits[i]
            new = min(high, max(low, changes[i] + steps[i]))
            left -= (new - changes[i]) * weights[i]
            changes[i] = new
        if not outside:
            break
        free = [i for i in free if i not in outside]
    after, before, more_loss = changes
    return after, before, more_loss, -left


def _fit_draft_return(inputs: PlanInputs, facts: BootLog) -> PlanInputs:
    """What came back of the draft between its pool and the graphs; the shape's number when the two agree."""
    low, high = facts.free_after_draft_pools_gib, facts.free_before_graphs_gib or facts.available_gib
    if low is None or high is None or (facts.graphs_gib and facts.free_before_graphs_gib is None):
        return inputs
    resolved = resolve(inputs)
    known = inputs.shape.draft_shared_bytes / GIB / (resolved.asked.tp * resolved.asked.pp)
    net = high - low
    returned = known if 0 <= known - net < 0.3 else max(0.0, net)
    return msgspec.structs.replace(inputs, draft_returned_gib=returned)


def _fit_graphs(inputs: PlanInputs, facts: BootLog) -> PlanInputs:
    """Graph memory as captured, with the guess it stands for, so that other sizes scale with it."""
    if not facts.graphs_gib:
        return inputs
    resolved = resolve(inputs)
    sizes = captured_sizes(resolved.defaults.sizes, facts.max_running_requests or 1, resolved.asked)
    prefill, decode = guess_gib(inputs.shape, resolved.asked, sizes)
    captured = facts.graphs_gib.get("prefill", 0.0)
    return msgspec.structs.replace(
        inputs,
        graphs_gib=sum(facts.graphs_gib.values()),
        graphs_guess_gib=prefill + decode if prefill + decode > 0 else None,
        prefill_graphs_gib=captured,
        prefill_graphs_guess_gib=prefill,
    )


def _fit_runtime(inputs: PlanInputs, facts: BootLog, own_share_gib: float | None) -> PlanInputs:
    """What the process holds beside everything named, less what grows with the tokens."""
    if not facts.kv_tokens:
        return inputs
    resolved = resolve(inputs)
    pieces = pieces_at(resolved, facts.mamba_slots or 0, facts.kv_tokens, facts.max_running_requests or 1)
    named = _named(pieces)
    told: list[float] = []
    if own_share_gib is not None:
        told.append(own_share_gib - inputs.context_gib - inputs.startup_loss_gib - named)
    if facts.available_gib is not None:
        told.append(inputs.free_before.gib - facts.available_gib + AFTER_SUMMARY_GIB - named)
    by_tokens = facts.kv_tokens * RUNTIME_BYTES_PER_TOKEN / GIB
    base = next((t - by_tokens for t in told if _RUNTIME_RANGE[0] <= t - by_tokens <= _RUNTIME_RANGE[1]), None)
    return inputs if base is None else msgspec.structs.replace(inputs, runtime_gib=base)


def _named(pieces: Pieces) -> float:
    """GiB of all pieces but context, start-up loss and runtime."""
    return (
        pieces.weights
        + pieces.draft
        - pieces.draft_returned
        + pieces.states
        + pieces.checkpoints
        + pieces.spec_buffer
        + pieces.kv
        + pieces.draft_kv
        + pieces.graphs
        + pieces.sizing_loss
    )
