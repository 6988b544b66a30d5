"""Ways to move memory between the pools and what stays free: the fraction, the ratio, the state slots.

Closed forms and halving only propose; who asked confirms with a plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec

from tuner.planner.changes import changed_flags
from tuner.planner.forward import plan
from tuner.planner.halving import first_that, last_that
from tuner.planner.model import GIB, Plan, PlanInputs
from tuner.planner.need import Need, rows_for, shortfalls, slots_needed
from tuner.planner.resolve import Resolved, resolve
from tuner.units import format_gib

#: The fraction is proposed in thousandths, up to here: above it SGLang has no memory left to run at all.
_LARGEST_FRACTION = 0.99
_STEP = 1000
Proposal = tuple[dict[str, Any], tuple[str, ...]]
Mover = Callable[[PlanInputs, Need, float], Proposal | None]


def _nothing(inputs: PlanInputs, need: Need, headroom: float) -> Proposal:
    return {}, ()


def _fraction(inputs: PlanInputs, need: Need, headroom: float) -> Proposal | None:
    return _search_fraction(inputs, need, headroom, lambda changed: {})


def _ratio(inputs: PlanInputs, need: Need, headroom: float) -> Proposal | None:
    ratio = _closed_ratio(inputs, need)
    if ratio is None:
        return None
    return {"mamba_full_memory_ratio": ratio}, (_ratio_reason(need),)


def _slots(inputs: PlanInputs, need: Need, headroom: float) -> Proposal | None:
    slots = _explicit_slots(inputs, need)
    if slots is None:
        return None
    return {"max_mamba_cache_size": slots}, (_slots_reason(slots),)


def _fraction_and_ratio(inputs: PlanInputs, need: Need, headroom: float) -> Proposal | None:
    def also(changed: PlanInputs) -> dict[str, Any] | None:
        ratio = _closed_ratio(changed, need)
        return None if ratio is None else {"mamba_full_memory_ratio": ratio}

    found = _search_fraction(inputs, need, headroom, also)
    return None if found is None else (found[0], (*found[1], _ratio_reason(need)))


def _fraction_and_slots(inputs: PlanInputs, need: Need, headroom: float) -> Proposal | None:
    def also(changed: PlanInputs) -> dict[str, Any] | None:
        slots = _explicit_slots(changed, need)
        return None if slots is None else {"max_mamba_cache_size": slots}

    found = _search_fraction(inputs, need, headroom, also)
    if found is None:
        return None
    return found[0], (*found[1], _slots_reason(found[0]["max_mamba_cache_size"]))


def _ratio_reason(need: Need) -> str:
    who = "1 agent needs" if need.agents == 1 else f"{need.agents} agents at once need"
    return f"This ratio gives the states what {who}, and the rest to the KV pool."


def _slots_reason(slots: int) -> str:
    return f"{slots} state slots are what the agents and the warm conversations need; the rest goes to the KV pool."


def _search_fraction(
    inputs: PlanInputs, need: Need, headroom: float, also: Callable[[PlanInputs], dict[str, Any] | None]
) -> Proposal | None:
    """The fraction nearest to the one in force that meets the need, else the largest that leaves the headroom.

    More fraction is never less of a pool and always less free memory, so both ends are found by halving.
    """

    def at(step: int) -> tuple[Plan, dict[str, Any]] | None:
        changes: dict[str, Any] = {"mem_fraction_static": step / _STEP}
        changed = msgspec.structs.replace(inputs, flags=changed_flags(inputs.flags, [changes]))
        more = also(changed)
        if more is None:
            return None
        changes |= more
        return plan(msgspec.structs.replace(inputs, flags=changed_flags(inputs.flags, [changes]))), changes

    low, high = 1, int(_LARGEST_FRACTION * _STEP)
    highest = last_that(low, high, lambda step: _leaves(at(step), headroom, need.least_free_gib))
    if highest is None:
        return None
    pools = first_that(low, highest, lambda step: _holds(at(step), need))
    current = inputs.flags.get("mem_fraction_static")
    step = highest if pools is None else pools
    if pools is not None and isinstance(current, int | float) and pools <= current * _STEP:
        step = min(highest, int(current * _STEP))
    found = at(step)
    if found is None:
        return None
    left = format_gib(found[0].ready_free_gib)
    raised = not isinstance(current, int | float) or step > current * _STEP
    if pools is None:
        reason = f"A fraction of {step / _STEP:g} is the most that leaves {format_gib(headroom)} free at ready."
    elif raised:
        reason = f"A fraction of {step / _STEP:g} gives the pools what they need and leaves {left} free."
    else:
        reason = f"A fraction of {step / _STEP:g} leaves {left} free at ready."
    return found[1], (reason,)


def _leaves(found: tuple[Plan, dict[str, Any]] | None, headroom: float, least_free_gib: float) -> bool:
    """Whether a start leaves the headroom; one that gets no pools leaves even more, so it counts as leaving it."""
    if found is None:
        return True
    return found[0].ready_free_gib >= headroom and found[0].lowest_free_gib >= least_free_gib


def _holds(found: tuple[Plan, dict[str, Any]] | None, need: Need) -> bool:
    return found is not None and not shortfalls(found[0], need, float("-inf"))


def _explicit_slots(inputs: PlanInputs, need: Need) -> int | None:
    """``max_mamba_cache_size`` for the need; None where the ratio or the requests decide anyway."""
    resolved = resolve(inputs)
    if resolved.cost is None or not resolved.strategy.radix:
        return None
    return slots_needed(need, resolved.cost.slots_per_request, rows_for(resolved, need)) * resolved.asked.attn_dp


def _closed_ratio(inputs: PlanInputs, need: Need) -> float | None:
    """The ratio whose state share is just what the slots take: needed / (rest - needed), a thousandth up.

    With speculation the share also pays for the drafts' states of every request that the slots could serve.
    """
    resolved = resolve(inputs)
    if resolved.cost is None or resolved.asked.slots is not None or not resolved.strategy.radix:
        return None
    needed = _state_share(resolved, need)
    rest = resolved.rest
    if resolved.rules.speculation == "upfront" and resolved.asked.speculation is not None:
        rest -= (resolved.asked.requests or rows_for(resolved, need)) * resolved.cost.slot * _drafts(resolved) / GIB
    if rest <= needed or rest <= 0:
        return None
    return math.ceil(1000 * needed / (rest - needed)) / 1000 or None


def _drafts(resolved: Resolved) -> int:
    speculation = resolved.asked.speculation
    active = speculation is not None and resolved.cost is not None and not resolved.cost.ring_active
    return speculation.draft_tokens if speculation is not None and active else 0


def _state_share(resolved: Resolved, need: Need) -> float:
    """GiB that the ratio must give the states so that the rule comes to the slots needed."""
    assert resolved.cost is not None
    cost = resolved.cost
    slots = slots_needed(need, cost.slots_per_request, rows_for(resolved, need))
    pad = 1 if resolved.rules.pays_padding_slot else 0
    drafts = _drafts(resolved)
    if drafts and resolved.rules.speculation != "upfront":
        per_slot = cost.slot * (1 + drafts / cost.slots_per_request)
        return (slots * per_slot + pad * cost.slot * (1 + drafts)) / GIB
    ring = (
        cost.ring * ((resolved.asked.requests or rows_for(resolved, need)) + 1)
        if resolved.rules.replay_ring == "fixed"
        else 0
    )
    in_slot = cost.ring if resolved.rules.replay_ring == "slot" else 0
    return ((slots + pad) * (cost.slot + in_slot) + (ring if cost.ring_active else 0)) / GIB


#: Ways to move memory by how many flags each changes: none, one, two.
MOVERS: tuple[tuple[Mover, ...], ...] = (
    (_nothing,),
    (_fraction, _ratio, _slots),
    (_fraction_and_ratio, _fraction_and_slots),
)
