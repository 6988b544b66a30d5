"""The pools of a start in bytes, and the change to the recipe that moves memory where it is missing."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from tuner.doctor.case import LogCase, as_number
from tuner.planner.model import Plan, PlanInputs
from tuner.planner.strategy import NO_BUFFER

#: Slots that a request reserves at the most (extra_buffer with the overlap schedule).
MOST_SLOTS_PER_REQUEST = 5
#: Slots that a request reserves where no strategy keeps a buffer for it, and where there is no prefix cache at all
#: (``_calculate_mamba_ratio``, 0.5.9 to 0.5.23).
_SLOTS_WITHOUT_BUFFER, _SLOTS_WITHOUT_CACHE = 3, 1
_16_BIT = frozenset({"bfloat16", "float16"})
#: What is left for what nobody counted, as a share of the tokens.
_MARGIN = 0.01
_HIGHEST_FRACTION = 0.98
#: The unit in which a context is proposed, tokens.
_CONTEXT_STEP = 1024


class Pools(msgspec.Struct, frozen=True, kw_only=True):
    """Both pools as a log tells or a plan gives them; GiB, tokens, slots. None: not known.

    ``requests`` are admitted, each reserves ``per_request`` slots; ``draft_gib``: states that the drafts of all of them
    keep beside the pool; ``idle_gib``: free memory above the headroom line; ``pinned``: the slots were asked for by
    number.
    """

    context: int | None = None
    kv_tokens: int | None = None
    kv_gib: float | None = None
    kv_16_bit: bool = False
    slots: int = 0
    slot_gib: float | None = None
    requests: int | None = None
    per_request: int | None = None
    draft_gib: float = 0.0
    pinned: bool = False
    idle_gib: float = 0.0
    fraction: float | None = None
    before_gib: float | None = None

    @property
    def slots_needed(self) -> int | None:
        """Slots that the admitted requests reserve, and one more; None when not known."""
        return self.requests * self.per_request + 1 if self.requests and self.per_request else None


def pools_of_log(case: LogCase) -> Pools:
    """The pools that a log tells: printed sizes of states cover one slot more than told (0.5.17)."""
    facts = case.facts
    slots, requests = facts.mamba_slots or 0, facts.max_running_requests
    per_request = _slots_per_request(case)
    if slots and requests and not per_request:
        per_request = min(MOST_SLOTS_PER_REQUEST, max(1, slots // requests))
    states = None if facts.ssm_state_gib is None else facts.ssm_state_gib + (facts.conv_state_gib or 0.0)
    free = case.ready_free_gib
    return Pools(
        context=facts.context_len,
        kv_tokens=facts.kv_tokens,
        kv_gib=facts.kv_gib,
        kv_16_bit=facts.kv_dtype in _16_BIT,
        slots=slots,
        slot_gib=states / (slots + 1) if states is not None and slots else None,
        requests=requests,
        per_request=per_request,
        draft_gib=(facts.spec_state_gib or 0.0) + (facts.spec_conv_gib or 0.0),
        pinned=case.argument("max_mamba_cache_size") is not None,
        idle_gib=0.0 if free is None else max(0.0, free - case.headroom_gib),
        fraction=case.number("mem_fraction_static"),
        before_gib=facts.free_before_gib,
    )


def _slots_per_request(case: LogCase) -> int | None:
    """As the log tells them, or as the strategy that it echoes makes them; None where they depend on the version.

    An "auto" that is echoed was not resolved, and then nothing keeps a buffer (0.5.17).
    """
    told = case.facts.slots_per_request
    if told is not None or not case.facts.server_args:
        return told
    if case.on("disable_radix_cache"):
        return _SLOTS_WITHOUT_CACHE
    strategy = case.argument("mamba_radix_cache_strategy") or case.argument("mamba_scheduler_strategy")
    return _SLOTS_WITHOUT_BUFFER if strategy in ("auto", NO_BUFFER) else None


def pools_of_plan(inputs: PlanInputs, plan: Plan) -> Pools:
    """The pools that a plan gives."""
    dtype = str(plan.in_force.get("kv_cache_dtype", inputs.flags.get("kv_cache_dtype", "auto")))
    return Pools(
        context=plan.context_len,
        kv_tokens=plan.kv_tokens,
        kv_gib=plan.kv_gib,
        kv_16_bit=dtype in ("auto", *_16_BIT),
        slots=plan.mamba_slots,
        slot_gib=plan.mamba_gib / (plan.mamba_slots + 1) if plan.mamba_slots > 0 else None,
        requests=plan.max_running_requests,
        per_request=plan.slots_per_request or None,
        draft_gib=plan.spec_buffer_gib,
        pinned=inputs.flags.get("max_mamba_cache_size") is not None,
        idle_gib=max(0.0, plan.ready_free_gib - plan.headroom_line_gib),
        fraction=as_number(plan.in_force.get("mem_fraction_static", inputs.flags.get("mem_fraction_static"))),
        before_gib=inputs.free_before.gib,
    )


def raised_fraction(pools: Pools, gib: float) -> dict[str, Any]:
    """A fraction that gives the pools ``gib`` more of what lies idle; empty when it does not or is not known."""
    if pools.fraction is None or not pools.before_gib or gib <= 0:
        return {}
    higher = math.floor((pools.fraction + gib / pools.before_gib) * 100 + 1e-6) / 100
    return {"mem_fraction_static": higher} if pools.fraction < higher <= _HIGHEST_FRACTION else {}


def more_kv(pools: Pools, tokens: int) -> dict[str, Any]:
    """The one change that lets the KV pool hold ``tokens``: idle memory first, then states, then 8-bit KV.

    Where nothing does, the context that fits. Empty when too little is known.
    """
    if not pools.kv_tokens or not pools.kv_gib:
        return {}
    extra = (tokens * (1 + _MARGIN) / pools.kv_tokens - 1) * pools.kv_gib
    share = 1.0
    if pools.slot_gib and not pools.pinned:
        # More memory goes to both pools in their proportion.
        share = pools.kv_gib / (pools.kv_gib + pools.slot_gib * pools.slots)
    # The fraction is told in hundredths, rounded down: one more makes up for that.
    step = 0.01 * (pools.before_gib or 0.0)
    if pools.idle_gib >= extra / share + step and (raised := raised_fraction(pools, extra / share + step)):
        return raised
    if pools.slot_gib and pools.slots_needed:
        left = pools.slots - math.ceil(extra / pools.slot_gib)
        if left >= pools.slots_needed:
            ratio = math.floor(left * pools.slot_gib / (pools.kv_gib + extra) * 100) / 100
            pin = pools.pinned or ratio <= 0
            return {"max_mamba_cache_size": left} if pin else {"mamba_full_memory_ratio": ratio}
    if pools.kv_16_bit and extra <= pools.kv_gib:
        return {"kv_cache_dtype": "fp8_e4m3"}
    fits = pools.kv_tokens // _CONTEXT_STEP * _CONTEXT_STEP
    return {"context_length": fits} if fits > 0 else {}
