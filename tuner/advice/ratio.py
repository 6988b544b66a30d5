"""Memory between the two pools: the ratio, or the pinned slots."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from tuner.advice.case import Case
from tuner.advice.model import Draft, Lever
from tuner.advice.need import WARM_EACH, requests_text
from tuner.planner.halving import last_that
from tuner.planner.model import Plan
from tuner.units import format_tokens

_STEP = 100
_LARGEST = 3.0
#: Slots beyond the need that are not worth moving.
_SPARE = 1.15


def proposals(case: Case) -> Iterator[Draft]:
    """To the pool that is short, from the one that is not."""
    if case.resolved.cost is None or not case.resolved.strategy.radix or case.resolved.asked.unified_memory:
        return
    wanted = case.slots_needed(case.plan.slots_per_request)
    slots = case.plan.mamba_slots
    if case.kv_wanted and not case.slots_wanted and slots > _SPARE * wanted:
        yield from _to_kv(case, wanted)
    elif case.slots_wanted and slots < wanted:
        yield from _to_states(case, wanted)


def states_for(case: Case, wanted: int, changes: dict[str, Any] | None = None) -> tuple[dict[str, Any], Plan] | None:
    """(flags, plan) that give the states ``wanted`` slots, and the KV pool the rest; None when nothing does.

    The smallest ratio in hundredths, or the pinned number where slots are pinned already. ``changes`` go before.
    """
    changes = changes or {}
    if case.resolved.asked.slots is not None:
        flags: dict[str, Any] = {"max_mamba_cache_size": wanted * case.resolved.asked.attn_dp}
        planned = case.after({**changes, **flags})
        return None if planned is None else (flags, planned)

    def at(step: int) -> Plan | None:
        return case.after({**changes, "mamba_full_memory_ratio": step / _STEP})

    def too_few(step: int) -> bool:
        planned = at(step)
        return planned is None or planned.mamba_slots < wanted

    below = last_that(1, math.floor(_LARGEST * _STEP), too_few)
    step = 1 if below is None else below + 1
    planned = at(step)
    if planned is None or planned.mamba_slots < wanted:
        return None
    return {"mamba_full_memory_ratio": step / _STEP}, planned


def _to_kv(case: Case, wanted: int) -> Iterator[Draft]:
    found = states_for(case, wanted)
    if found is None:
        return
    flags, planned = found
    gives_up = f"{case.plan.mamba_slots - planned.mamba_slots} slots that kept states of older prefixes"
    if planned.max_running_requests < case.plan.max_running_requests:
        gives_up += f", and {planned.max_running_requests} instead of {case.plan.max_running_requests} requests at once"
    yield Draft(
        id="smaller-ratio" if "mamba_full_memory_ratio" in flags else "fewer-slots",
        lever=Lever.RATIO,
        title=f"Move memory from states to KV: {_move(case, flags)}",
        flags=flags,
        reason=f"{wanted} of {case.plan.mamba_slots} state slots serve {_whom(case)}; the rest is worth more as KV.",
        evidence=evidence(case),
        gives_up=gives_up,
        risk="A cached conversation whose state is gone is computed again, even while its KV is still there.",
        gains=("kv_tokens",),
    )


def _to_states(case: Case, wanted: int) -> Iterator[Draft]:
    found = states_for(case, wanted)
    if found is None:
        return
    flags, planned = found
    yield Draft(
        id="larger-ratio" if "mamba_full_memory_ratio" in flags else "more-slots",
        lever=Lever.RATIO,
        title=f"Move memory from KV to states: {_move(case, flags)}",
        flags=flags,
        reason=f"{case.plan.mamba_slots} state slots admit {case.plan.max_running_requests} requests at once; "
        f"{_whom(case)} need {wanted}.",
        evidence=evidence(case),
        gives_up=f"{format_tokens(case.plan.kv_tokens - planned.kv_tokens)} KV tokens",
        risk="Inputs longer than the smaller KV pool are refused.",
        gains=("max_running_requests", "mamba_slots"),
    )


def _move(case: Case, flags: dict[str, Any]) -> str:
    ((name, value),) = flags.items()
    if name == "mamba_full_memory_ratio":
        return f"ratio {case.resolved.defaults.ratio:g} to {value:g}"
    return f"{case.plan.mamba_slots} to {value} slots"


def _whom(case: Case) -> str:
    warm = case.need.warm_prefixes if case.need is not None else WARM_EACH * case.requests_at_once
    kept = f" and {warm} states of warm conversations" if warm else ""
    return f"{requests_text(case.requests_at_once)}{kept}"


def evidence(case: Case) -> tuple[str, ...]:
    """What readings and the need say about the two pools."""
    usage, plan = case.usage, case.plan
    pools = f"KV {format_tokens(plan.kv_tokens)} tokens, context {format_tokens(plan.context_len)}"
    if plan.slots_per_request:
        pools = f"{plan.mamba_slots} slots, {plan.slots_per_request} a request; {pools}"
    told = [pools]
    if case.need is not None:
        what = "needed" if case.stated else "seen"
        told.append(
            f"{what}: {requests_text(case.need.agents)} at once, the longest of "
            f"{format_tokens(case.need.input_tokens)} tokens, {format_tokens(case.tokens)} together"
        )
    if usage.peak_slots_used is not None:
        cached = f", {usage.peak_slots_cached} held by cached prefixes" if usage.peak_slots_cached is not None else ""
        told.append(f"at most {usage.peak_slots_used} slots used by requests{cached}")
    if usage.evicted_tokens:
        told.append(f"{format_tokens(usage.evicted_tokens)} KV tokens evicted")
    if usage.retracted:
        told.append(f"{usage.retracted} requests retracted for want of KV")
    return tuple(told)
