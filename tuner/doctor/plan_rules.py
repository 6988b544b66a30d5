"""What a plan tells before anything is started."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from tuner.doctor import misfit
from tuner.doctor.admitting import Capped, States, more_requests, states_now
from tuner.doctor.case import as_number, finding
from tuner.doctor.fraction import fraction_above
from tuner.doctor.headroom import headroom_severity
from tuner.doctor.parsers import parsers_unfit
from tuner.doctor.sizes import Pools, more_kv, pools_of_plan
from tuner.doctor.upstream import host_tier_fault
from tuner.findings import Finding, FindingId, Severity
from tuner.modelcard import Family
from tuner.planner import plan as make_plan
from tuner.planner.model import GIB, LEAST_FREE_GIB, LOWEST_SEEN_GIB, Plan, PlanInputs
from tuner.planner.preflight import flag_conflicts
from tuner.planner.strategy import NO_BUFFER, RADIX_OFF, UNRESOLVED
from tuner.units import format_gib, format_tokens

Rule = Callable[[PlanInputs, Plan], Finding | None]

_THIN = 0.01
_SPEC_SHARE = 0.15
#: Lower fractions that are planned one after the other.
_MOST_STEPS = 5


def _no_room(inputs: PlanInputs, plan: Plan) -> Finding | None:
    if plan.fits:
        return None
    without_slots = inputs.shape.family is not Family.PLAIN and plan.mamba_slots <= 0
    if plan.kv_tokens > 0 and plan.max_running_requests > 0 and plan.lowest_free_gib < 0:
        return finding(
            FindingId.OOM_IN_CAPTURE,
            Severity.FATAL,
            "The start would run out of memory beside the pools.",
            evidence=(plan.refusal, f"lowest free memory of the start: {format_gib(plan.lowest_free_gib)}"),
            remedy="Lower mem_fraction_static, or capture fewer graphs.",
            flags=fraction_with_headroom(inputs, plan)
            or _fraction_less(inputs, plan, LEAST_FREE_GIB - plan.lowest_free_gib),
        )
    asked = as_number(plan.in_force.get("mem_fraction_static", inputs.flags.get("mem_fraction_static")))
    least = 1 - inputs.free_after.gib / inputs.free_before.gib if inputs.free_before.gib > 0 else 1.0
    remedy, flags = fraction_above(least) if asked is not None and asked <= least else (_advice(plan.refusal), {})
    return finding(
        FindingId.SLOTS_NEGATIVE if without_slots else FindingId.NO_ROOM_AT_SIZING,
        Severity.FATAL,
        "SGLang would refuse this start: the pools do not fit.",
        evidence=(
            plan.refusal,
            f"free before loading {format_gib(inputs.free_before.gib)}, after {format_gib(inputs.free_after.gib)}",
        ),
        remedy=remedy,
        flags=flags,
    )


def _advice(refusal: str) -> str:
    """What the planner's sentence tells to do: the part after its colon."""
    advice = refusal.rpartition(": ")[2]
    return advice[:1].upper() + advice[1:]


def _requests_capped(inputs: PlanInputs, plan: Plan) -> Finding | None:
    asked, admitted, per_request = plan.requests_asked, plan.max_running_requests, plan.slots_per_request
    if not plan.fits or asked is None or admitted >= asked:
        return None
    if not per_request or plan.mamba_slots // per_request > admitted:
        return finding(
            FindingId.ASKED_NOT_EFFECTIVE,
            Severity.WARNING,
            f"Only {admitted} requests would run at once, {asked} are asked.",
            evidence=(f"KV pool: {format_tokens(plan.kv_tokens)} tokens",),
            remedy="Give the KV pool more memory, or ask for fewer requests.",
        )
    pools = pools_of_plan(inputs, plan)
    narrow = _narrow(inputs, pools)
    remedy, flags = more_requests(Capped(pools=pools, asked=asked, in_16_bit=narrow is None, narrow=narrow))
    return finding(
        FindingId.REQUESTS_CAPPED_BY_SLOTS,
        Severity.WARNING,
        f"The state slots admit {admitted} request{'s' if admitted != 1 else ''} at once, {asked} are asked.",
        evidence=(f"{plan.mamba_slots} state slots, {per_request} for each request",),
        remedy=remedy,
        flags=flags,
    )


def _narrow(inputs: PlanInputs, pools: Pools) -> States | None:
    """The states of the same start in 16 bit; None where they are so already, by a flag or by the model's config."""
    narrow = msgspec.structs.replace(inputs, flags={**inputs.flags, "mamba_ssm_dtype": "bfloat16"})
    states = states_now(pools_of_plan(narrow, make_plan(narrow)))
    return states if states is not None and states.slot_gib < (pools.slot_gib or 0.0) else None


def _pool_below_context(inputs: PlanInputs, plan: Plan) -> Finding | None:
    if not plan.fits or plan.kv_tokens >= plan.context_len * (1 + _THIN):
        return None
    evidence = (
        f"KV pool {format_tokens(plan.kv_tokens)} tokens, context {format_tokens(plan.context_len)} tokens",
        f"longest input {format_tokens(plan.longest_input_tokens)} tokens",
    )
    if plan.kv_tokens < plan.context_len:
        return finding(
            FindingId.POOL_BELOW_CONTEXT,
            Severity.WARNING,
            f"Inputs above {format_tokens(plan.longest_input_tokens)} tokens would be refused.",
            evidence=evidence,
            remedy="Give KV more (smaller mamba_full_memory_ratio, fp8 KV, higher fraction), or set context_length to "
            "what you need.",
            flags=more_kv(pools_of_plan(inputs, plan), plan.context_len),
        )
    return finding(
        FindingId.POOL_BELOW_CONTEXT,
        Severity.NOTE,
        f"The KV pool is only {format_tokens(plan.kv_tokens - plan.context_len)} tokens larger than one full context.",
        evidence=evidence,
        remedy="Leave some margin: any change that costs a little memory makes the longest inputs fail.",
    )


def _ratio_misfit(inputs: PlanInputs, plan: Plan) -> Finding | None:
    # Where no number is asked for, requests are admitted until the slots are used up.
    if not plan.fits or not plan.slots_per_request or plan.requests_asked is None:
        return None
    return misfit.ratio_misfit(pools_of_plan(inputs, plan))


def _low_headroom(inputs: PlanInputs, plan: Plan) -> Finding | None:
    line = plan.headroom_line_gib
    if not plan.fits:
        return None
    if plan.ready_free_gib >= line:
        return _low_start(inputs, plan)
    return finding(
        FindingId.LOW_HEADROOM,
        headroom_severity(plan.ready_free_gib, line),
        f"Only {format_gib(plan.ready_free_gib)} would stay free, {format_gib(line)} are wanted.",
        evidence=(f"lowest point of the start: {format_gib(plan.lowest_free_gib)} free",),
        remedy="Lower mem_fraction_static: long prompts and compilations take memory outside the pools.",
        flags=fraction_with_headroom(inputs, plan) or _fraction_less(inputs, plan, line - plan.ready_free_gib),
    )


def _low_start(inputs: PlanInputs, plan: Plan) -> Finding | None:
    if plan.lowest_free_gib >= LEAST_FREE_GIB:
        return None
    return finding(
        FindingId.LOW_HEADROOM,
        Severity.WARNING,
        f"Only {format_gib(plan.lowest_free_gib)} would be free at the lowest point of the start.",
        evidence=(
            f"free at ready: {format_gib(plan.ready_free_gib)}; no start was seen that came up from less than "
            f"{format_gib(LOWEST_SEEN_GIB)}",
        ),
        remedy="Lower mem_fraction_static a little: whatever else takes that much of the card ends such a start.",
        flags=_fraction_less(inputs, plan, LEAST_FREE_GIB - plan.lowest_free_gib),
    )


def fraction_with_headroom(inputs: PlanInputs, plan: Plan) -> dict[str, float]:
    """The fraction whose start keeps to the headroom line and does not come near to its end; empty where none does.

    Graphs that were given up for lack of memory come back with it, so that each step is planned.
    """
    flags: dict[str, float] = {}
    for _ in range(_MOST_STEPS):
        missing = max(plan.headroom_line_gib - plan.ready_free_gib, LEAST_FREE_GIB - plan.lowest_free_gib)
        if plan.fits and missing <= 0:
            return flags
        if not (flags := _fraction_less(inputs, plan, missing)):
            return {}
        inputs = msgspec.structs.replace(inputs, flags=inputs.flags | flags)
        plan = make_plan(inputs)
    return {}


def _fraction_less(inputs: PlanInputs, plan: Plan, gib: float) -> dict[str, float]:
    """The fraction that leaves so much more free; empty where none is known."""
    fraction = as_number(plan.in_force.get("mem_fraction_static", inputs.flags.get("mem_fraction_static")))
    if fraction is None or inputs.free_before.gib <= 0:
        return {}
    lower = math.floor((fraction - gib / inputs.free_before.gib) * 100) / 100
    return {"mem_fraction_static": lower} if lower > 0.1 else {}


def _spec_eats_pool(inputs: PlanInputs, plan: Plan) -> Finding | None:
    if not plan.fits or not inputs.flags.get("speculative_algorithm"):
        return None
    terms = {term.name: term.gib for term in plan.terms}
    # At sizing the draft counts whole: its embedding and head come back only afterwards.
    whole = inputs.draft_weights.gib if inputs.draft_weights else inputs.shape.draft_weights_bytes / GIB
    draft = (whole if terms.get("draft") else 0.0) + terms.get("draft_kv", 0.0)
    cost = draft + plan.spec_buffer_gib
    pools = plan.kv_gib + plan.mamba_gib
    if cost < _SPEC_SHARE * (cost + pools):
        return None
    return finding(
        FindingId.SPEC_EATS_POOL,
        Severity.WARNING if plan.spec_buffer_gib > pools else Severity.NOTE,
        f"Speculation takes {format_gib(cost)} that the pools do without.",
        evidence=(
            f"draft {format_gib(draft)}, draft states {format_gib(plan.spec_buffer_gib)}, pools {format_gib(pools)}",
        ),
        remedy="Set max_running_requests to what really runs at once (each keeps draft states), or draft fewer tokens.",
    )


def _prefix_cache(inputs: PlanInputs, plan: Plan) -> Finding | None:
    if plan.strategy == RADIX_OFF:
        return finding(
            FindingId.PREFIX_CACHE_OFF,
            Severity.WARNING,
            "The prefix cache is off: every prompt is computed from its first token.",
            evidence=(f"strategy: {plan.strategy}",),
            remedy="Leave disable_radix_cache out (and give speculation an extra buffer), unless prompts never share "
            "a beginning.",
            flags={"disable_radix_cache": None} if inputs.flags.get("disable_radix_cache") else {},
        )
    if plan.strategy not in (NO_BUFFER, UNRESOLVED):
        return None
    chunk = as_number(plan.in_force.get("chunked_prefill_size", inputs.flags.get("chunked_prefill_size")))
    inside = f"one chunk of {format_tokens(int(chunk))} tokens" if chunk and chunk > 0 else "one prefill chunk"
    return finding(
        FindingId.PREFIX_CACHE_OFF,
        Severity.WARNING if plan.strategy == UNRESOLVED else Severity.NOTE,
        f"A shared beginning shorter than {inside} would never be reused: states are kept at ends of chunks only.",
        evidence=(f"strategy: {plan.strategy}, model class: {inputs.shape.architecture}",),
        remedy="Set mamba_radix_cache_strategy to extra_buffer by name; it takes more slots per request.",
        flags={"mamba_radix_cache_strategy": "extra_buffer"},
    )


def _states_not_hybrid(inputs: PlanInputs, _plan: Plan) -> Finding | None:
    if inputs.shape.family is not Family.PLAIN:
        return None
    names = ("max_mamba_cache_size", "mamba_ssm_dtype", "mamba_full_memory_ratio", "mamba_radix_cache_strategy")
    asked = [n for n in names if inputs.flags.get(n) not in (None, "", "auto")]
    if not asked:
        return None
    return finding(
        FindingId.STATES_NOT_HYBRID,
        Severity.NOTE,
        "Flags for states are set, but this model keeps none.",
        evidence=tuple(f"{n} = {inputs.flags[n]}" for n in asked),
        remedy="They do nothing here; if the model is hybrid, check its config.json.",
        flags=dict.fromkeys(asked),
    )


def _parsers(inputs: PlanInputs, _plan: Plan) -> Finding | None:
    def chosen(name: str) -> str | None:
        value = inputs.flags.get(name)
        return None if value in (None, "") else str(value)

    return parsers_unfit(inputs.shape.architecture, chosen)


def _host_tier(inputs: PlanInputs, _plan: Plan) -> Finding | None:
    asked = inputs.flags.get("enable_hierarchical_cache")
    return host_tier_fault() if asked and inputs.shape.family is not Family.PLAIN else None


def _metrics_off(inputs: PlanInputs, _plan: Plan) -> Finding | None:
    if inputs.flags.get("enable_metrics"):
        return None
    return finding(
        FindingId.METRICS_OFF,
        Severity.WARNING,
        "The server would run without metrics: latencies, slots and cache hits cannot be seen.",
        evidence=("enable_metrics is not set",),
        remedy="Set enable_metrics; it costs next to nothing.",
        flags={"enable_metrics": True},
    )


RULES: tuple[Rule, ...] = (
    _no_room,
    _states_not_hybrid,
    _requests_capped,
    _pool_below_context,
    _ratio_misfit,
    _low_headroom,
    _spec_eats_pool,
    _prefix_cache,
    _host_tier,
    _parsers,
    _metrics_off,
)

_ORDER = {Severity.FATAL: 0, Severity.WARNING: 1, Severity.NOTE: 2}


def diagnose_plan(inputs: PlanInputs, plan: Plan) -> tuple[Finding, ...]:
    """What a plan tells before the start, worst first: flags that do not go together, pools that do not serve."""
    found = [*flag_conflicts(inputs), *(f for rule in RULES if (f := rule(inputs, plan)))]
    return tuple(sorted(found, key=lambda f: _ORDER[f.severity]))
