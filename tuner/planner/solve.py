"""From needs to flags: the fewest changes that the forward rule confirms.

A candidate is a set of switches (requests, state dtype, KV dtype, strategy, speculation) and one way to move memory
(fraction, ratio, slots). Closed forms only propose; ``plan`` decides.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tuner.planner.admission import rows_needed, tokens_together
from tuner.planner.asked import ALIASES
from tuner.planner.forward import Resolved, longest_input, pin_draft, plan, reserved_tokens, resolve
from tuner.planner.model import GIB, CannotPlan, Plan, PlanInputs
from tuner.planner.strategy import EXTRA_BUFFER, LAZY
from tuner.units import format_gib, format_tokens

#: Flags that a solution may change, or their beginnings.
MOVES = (
    "mem_fraction_static",
    "mamba_full_memory_ratio",
    "max_mamba_cache_size",
    "max_running_requests",
    "context_length",
    "mamba_ssm_dtype",
    "mamba_radix_cache_strategy",
    "kv_cache_dtype",
    "cuda_graph_backend_prefill",
    "disable_piecewise_cuda_graph",
    "speculative_",
)
#: The fraction is proposed in thousandths, up to here: above it SGLang has no memory left to run at all.
_LARGEST_FRACTION = 0.99
_STEP = 1000


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """What a server must be good for, on one attention-DP rank.

    ``agents`` inputs, sent at once, run together to the end of answers of ``output_tokens``, none retracted.
    ``warm_prefixes`` are conversations kept beside those that run, each ``warm_tokens`` long (the longest input when
    None); ``headroom_gib`` is free VRAM at ready (the line of the inputs when None).
    """

    input_tokens: int
    agents: int = 1
    warm_prefixes: int = 0
    headroom_gib: float | None = None
    warm_tokens: int | None = None
    output_tokens: int = 1


class Solution(msgspec.Struct, frozen=True, kw_only=True):
    """``flags`` are the changes alone, by underscore name; None as a value means: leave the flag out.

    ``inputs`` are the caller's with the changes laid in and the draft pinned: ``plan(inputs)`` is ``plan``.
    ``met`` False: the nearest that fits, with what is ``missing``, one sentence each.
    """

    met: bool
    flags: dict[str, Any]
    plan: Plan
    inputs: PlanInputs
    reasons: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


class _Switch(msgspec.Struct, frozen=True, kw_only=True):
    """One change of a flag that is on or off, with its reason and its price (dearer ones are tried later)."""

    flags: dict[str, Any]
    reason: str
    price: int


class _Candidate(msgspec.Struct, frozen=True, kw_only=True):
    changes: dict[str, Any]
    reasons: tuple[str, ...]
    inputs: PlanInputs
    plan: Plan


def solve(inputs: PlanInputs, need: Need, *, keep: Collection[str] = ()) -> Solution:
    """The fewest changes to the flags of ``inputs`` that meet ``need``; the nearest when none do.

    Flags named in ``keep`` stay as they are; a prefix such as ``speculative_`` names all that begin with it.
    Raises CannotPlan with one sentence when the need makes no sense or nothing at all can be planned.
    """
    _check(need)
    inputs = pin_draft(inputs)
    headroom = need.headroom_gib if need.headroom_gib is not None else inputs.headroom_line_gib
    best: _Candidate | None = None
    problem: CannotPlan | None = None
    for switches, movers in _by_changes(inputs, need, tuple(keep)):
        flags = changed_flags(inputs.flags, [switch.flags for switch in switches])
        for mover in movers:
            try:
                proposal = mover(msgspec.structs.replace(inputs, flags=flags), need, headroom)
            except CannotPlan as error:
                problem = problem or error
                continue
            if proposal is None:
                continue
            changes, reasons = proposal
            if _touches(changes, keep):
                continue
            all_flags = changed_flags(flags, [changes])
            changed = msgspec.structs.replace(inputs, flags=all_flags)
            try:
                result = plan(changed)
            except CannotPlan as error:
                problem = problem or error
                continue
            candidate = _Candidate(
                changes=_difference(inputs.flags, all_flags),
                reasons=(*(switch.reason for switch in switches), *reasons),
                inputs=changed,
                plan=result,
            )
            if not shortfalls(result, need, headroom):
                return _solution(candidate, ())
            if best is None or _nearness(result, need, headroom) > _nearness(best.plan, need, headroom) + 1e-9:
                best = candidate
    if best is None:
        raise problem or CannotPlan("Nothing can be planned from these flags.")
    return _solution(best, shortfalls(best.plan, need, headroom))


def _solution(candidate: _Candidate, missing: tuple[str, ...]) -> Solution:
    return Solution(
        met=not missing,
        flags=candidate.changes,
        plan=candidate.plan,
        inputs=candidate.inputs,
        reasons=candidate.reasons,
        missing=missing,
    )


def shortfalls(result: Plan, need: Need, headroom_gib: float) -> tuple[str, ...]:
    """What a plan lacks for a need, one sentence each; empty when it is met."""
    if not result.fits:
        return (result.refusal,)
    missing: list[str] = []
    if result.longest_input_tokens < need.input_tokens:
        missing.append(
            f"The longest input is {format_tokens(result.longest_input_tokens)} tokens, "
            f"{format_tokens(need.input_tokens)} are needed."
        )
    if result.context_len < need.input_tokens + need.output_tokens:
        missing.append(
            f"The context is {format_tokens(result.context_len)} tokens, input and answer take "
            f"{format_tokens(need.input_tokens + need.output_tokens)}."
        )
    tokens = tokens_needed(need, result)
    if result.kv_tokens < tokens:
        missing.append(
            f"The KV pool holds {format_tokens(result.kv_tokens)} tokens, {format_tokens(tokens)} are needed at once."
        )
    rows = rows_needed(need.agents, need.input_tokens, _chunk(result))
    if result.max_running_requests < rows:
        missing.append(
            f"{result.max_running_requests} requests are admitted at once, {rows} are needed"
            + (f" for {need.agents} to be prefilled side by side." if rows > need.agents else ".")
        )
    slots = slots_needed(need, result.slots_per_request, rows)
    if result.slots_per_request and result.mamba_slots < slots:
        missing.append(f"There are {result.mamba_slots} state slots, {slots} are needed.")
    if result.ready_free_gib < headroom_gib:
        missing.append(
            f"{format_gib(result.ready_free_gib)} stay free at ready, {format_gib(headroom_gib)} are to stay free."
        )
    return tuple(missing)


def slots_needed(need: Need, slots_per_request: int, rows: int) -> int:
    """State slots for the ``rows`` of requests that are admitted, the warm conversations and one to copy into.

    Requests * slots per request + 1 (the ping-pong assert of a pool that is exactly full), and a slot for each warm
    one; what a spare row does not use while only the agents run holds warm ones too. Without a prefix cache a slot
    per row is all.
    """
    if slots_per_request <= 1:
        return rows * slots_per_request
    return max(rows * slots_per_request, need.agents * slots_per_request + need.warm_prefixes) + 1


def tokens_needed(need: Need, result: Plan) -> int:
    """KV tokens for the agents in flight together and the warm conversations."""
    warm = need.warm_tokens if need.warm_tokens is not None else need.input_tokens
    page = int(result.in_force.get("page_size") or 1)
    together = tokens_together(
        need.agents, need.input_tokens, need.output_tokens, page, max(1, result.decode_ahead_tokens)
    )
    return together + need.warm_prefixes * warm


def _chunk(result: Plan) -> int:
    return int(result.in_force.get("chunked_prefill_size") or 0)


def _check(need: Need) -> None:
    for label, value, least in (
        ("longest input", need.input_tokens, 1),
        ("number of agents", need.agents, 1),
        ("number of warm conversations", need.warm_prefixes, 0),
        ("length of the answers", need.output_tokens, 1),
    ):
        if value < least:
            raise CannotPlan(f"The {label} is {value}: it must be at least {least}.")
    if need.headroom_gib is not None and (not math.isfinite(need.headroom_gib) or need.headroom_gib < 0):
        raise CannotPlan(f"The headroom is {need.headroom_gib} GiB: it must not be negative.")


def _nearness(result: Plan, need: Need, headroom_gib: float) -> float:
    """How near a plan comes, from 0 to 1 for each part of the need; a plan that does not start is last."""
    if not result.fits:
        return -1.0
    rows = rows_needed(need.agents, need.input_tokens, _chunk(result))
    slots = slots_needed(need, result.slots_per_request, rows)
    parts = [
        result.longest_input_tokens / need.input_tokens,
        result.kv_tokens / tokens_needed(need, result),
        result.max_running_requests / rows,
        result.mamba_slots / slots if slots else 1.0,
        result.ready_free_gib / headroom_gib if headroom_gib > 0 else 1.0,
    ]
    held = [max(0.0, min(1.0, part)) for part in parts]
    return min(held) + sum(held) / 100


def changed_flags(flags: Mapping[str, Any], changes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Flags with changes laid over; an old name of a changed flag goes."""
    result = dict(flags)
    for change in changes:
        for key, value in change.items():
            for alias in (key, *ALIASES.get(key, ())):
                result.pop(alias, None)
            if value is not None:
                result[key] = value
    return result


def _difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    changes: dict[str, Any] = {key: value for key, value in new.items() if old.get(key) != value}
    for key in old:
        if key not in new and not any(key in ALIASES.get(name, ()) for name in changes):
            changes[key] = None
    return changes


_Proposal = tuple[dict[str, Any], tuple[str, ...]]
_Mover = Callable[[PlanInputs, Need, float], _Proposal | None]


def _touches(changes: Iterable[str], keep: Collection[str]) -> bool:
    return any(name.startswith(kept) for name in changes for kept in keep)


def _by_changes(
    inputs: PlanInputs, need: Need, keep: tuple[str, ...]
) -> Iterator[tuple[tuple[_Switch, ...], tuple[_Mover, ...]]]:
    """Candidates by how many flags they change, cheaper ones first."""
    needed, switches = _switches(inputs, need)
    needed, switches = ([s for s in some if not _touches(s.flags, keep)] for some in (needed, switches))
    by_size: tuple[tuple[_Mover, ...], ...] = (
        (_nothing,),
        (_fraction, _ratio, _slots),
        (_fraction_and_ratio, _fraction_and_slots),
    )
    combinations = [
        (*needed, *chosen) for size in range(len(switches) + 1) for chosen in itertools.combinations(switches, size)
    ]
    combinations.sort(key=lambda chosen: (len(chosen), sum(switch.price for switch in chosen)))
    for total in range(len(needed), len(needed) + len(switches) + len(by_size)):
        for chosen in combinations:
            moved = total - len(chosen)
            if 0 <= moved < len(by_size):
                yield chosen, by_size[moved]


def _switches(inputs: PlanInputs, need: Need) -> tuple[list[_Switch], list[_Switch]]:
    """(changes that any solution must make, changes that a solution may make)."""
    flags = inputs.flags
    try:
        resolved = resolve(msgspec.structs.replace(inputs, flags={"mem_fraction_static": 0.9} | dict(flags)))
    except CannotPlan:
        return [], []
    asked = resolved.asked
    needed: list[_Switch] = []
    optional: list[_Switch] = []
    rows = rows_needed(need.agents, need.input_tokens, resolved.defaults.chunked_prefill_size)
    requests = rows * asked.attn_dp
    if asked.requests is not None and asked.requests < requests:
        needed.append(_requests(requests, _why_requests(need, rows)))
    elif asked.requests != requests and (asked.speculation is not None or asked.disable_radix):
        optional.append(_requests(requests, "Every request that may run keeps draft states or a slot: admit no more."))
    if (
        asked.context_length is not None
        and longest_input(asked.context_length, asked.context_length, reserved_tokens(asked)) < need.input_tokens
    ):
        needed.append(
            _Switch(flags={"context_length": None}, reason="The context length is below the longest input.", price=1)
        )
    state = inputs.shape.state
    if state is not None and state.heads and asked.ssm_dtype not in ("bfloat16", "float16"):
        optional.append(
            _Switch(
                flags={"mamba_ssm_dtype": "bfloat16"},
                reason="16-bit states halve the bytes of a slot (a measured trade within noise of quality).",
                price=2,
            )
        )
    if state is not None and asked.strategy == EXTRA_BUFFER:
        optional.append(
            _Switch(
                flags={"mamba_radix_cache_strategy": LAZY},
                reason="The lazy extra buffer takes one slot less per request.",
                price=3,
            )
        )
    if asked.kv_cache_dtype in ("auto", "bfloat16", "bf16") and inputs.shape.kv_cache_dtype is None:
        optional.append(
            _Switch(
                flags={"kv_cache_dtype": "fp8_e4m3"},
                reason="8-bit KV doubles the tokens of the same memory (check quality: few checkpoints hold scales).",
                price=4,
            )
        )
    if resolved.defaults.sizes.prefill and (off := prefill_graphs_off(resolved)):
        optional.append(
            _Switch(
                flags=off,
                reason="The graphs of prompts lie outside the pools; without them short prompts start a little later.",
                price=5,
            )
        )
    if asked.speculation is not None:
        spec_flags = [key for key in flags if key.startswith("speculative_")]
        optional.append(
            _Switch(
                flags=dict.fromkeys(spec_flags),
                reason="Without speculation its weights, draft states and draft KV go to the pools (slower answers).",
                price=9,
            )
        )
    return needed, optional


def prefill_graphs_off(resolved: Resolved) -> dict[str, Any]:
    """The flag that leaves prefill graphs out; empty where the version has none or they were asked for by name."""
    if resolved.asked.prefill_graphs_forced or resolved.rules.version < (0, 5, 12):
        return {}
    if resolved.rules.version < (0, 5, 17):
        return {"disable_piecewise_cuda_graph": True}
    return {"cuda_graph_backend_prefill": "disabled"}


def _why_requests(need: Need, rows: int) -> str:
    if rows == need.agents:
        return f"{need.agents} agents at once need that many requests admitted."
    return (
        f"{need.agents} agents at once need one request more: SGLang counts the one whose chunks are prefilled twice, "
        "and the last would wait."
    )


def _requests(count: int, reason: str) -> _Switch:
    return _Switch(flags={"max_running_requests": count}, reason=reason, price=1)


def _nothing(inputs: PlanInputs, need: Need, headroom: float) -> _Proposal:
    return {}, ()


def _fraction(inputs: PlanInputs, need: Need, headroom: float) -> _Proposal | None:
    return _search_fraction(inputs, need, headroom, lambda changed: {})


def _ratio(inputs: PlanInputs, need: Need, headroom: float) -> _Proposal | None:
    ratio = _closed_ratio(inputs, need)
    if ratio is None:
        return None
    return {"mamba_full_memory_ratio": ratio}, (_ratio_reason(need),)


def _slots(inputs: PlanInputs, need: Need, headroom: float) -> _Proposal | None:
    slots = _explicit_slots(inputs, need)
    if slots is None:
        return None
    return {"max_mamba_cache_size": slots}, (_slots_reason(slots),)


def _fraction_and_ratio(inputs: PlanInputs, need: Need, headroom: float) -> _Proposal | None:
    def also(changed: PlanInputs) -> dict[str, Any] | None:
        ratio = _closed_ratio(changed, need)
        return None if ratio is None else {"mamba_full_memory_ratio": ratio}

    found = _search_fraction(inputs, need, headroom, also)
    return None if found is None else (found[0], (*found[1], _ratio_reason(need)))


def _fraction_and_slots(inputs: PlanInputs, need: Need, headroom: float) -> _Proposal | None:
    def also(changed: PlanInputs) -> dict[str, Any] | None:
        slots = _explicit_slots(changed, need)
        return None if slots is None else {"max_mamba_cache_size": slots}

    found = _search_fraction(inputs, need, headroom, also)
    if found is None:
        return None
    return found[0], (*found[1], _slots_reason(found[0]["max_mamba_cache_size"]))


def _ratio_reason(need: Need) -> str:
    return f"This ratio gives the states what {need.agents} agents at once need, and the rest to the KV pool."


def _slots_reason(slots: int) -> str:
    return f"{slots} state slots are what the agents and the warm conversations need; the rest goes to the KV pool."


def _search_fraction(
    inputs: PlanInputs, need: Need, headroom: float, also: Callable[[PlanInputs], dict[str, Any] | None]
) -> _Proposal | None:
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
    highest = _last(low, high, lambda step: _leaves(at(step), headroom))
    if highest is None:
        return None
    pools = _first(low, highest, lambda step: _holds(at(step), need))
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


def _leaves(found: tuple[Plan, dict[str, Any]] | None, headroom: float) -> bool:
    """Whether a start leaves the headroom; one that gets no pools leaves even more, so it counts as leaving it."""
    if found is None:
        return True
    return found[0].ready_free_gib >= headroom and found[0].lowest_free_gib >= 0


def _holds(found: tuple[Plan, dict[str, Any]] | None, need: Need) -> bool:
    return found is not None and not shortfalls(found[0], need, float("-inf"))


def _last(low: int, high: int, holds: Callable[[int], bool]) -> int | None:
    """The last step from ``low`` to ``high`` that holds, where holding once lost is lost for good."""
    if not holds(low):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _first(low: int, high: int, holds: Callable[[int], bool]) -> int | None:
    """The first step that holds, where holding once won is won for good."""
    if not holds(high):
        return None
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _explicit_slots(inputs: PlanInputs, need: Need) -> int | None:
    """``max_mamba_cache_size`` for the need; None where the ratio or the requests decide anyway."""
    resolved = resolve(inputs)
    if resolved.cost is None or not resolved.strategy.radix:
        return None
    return slots_needed(need, resolved.cost.slots_per_request, _rows(resolved, need)) * resolved.asked.attn_dp


def _rows(resolved: Resolved, need: Need) -> int:
    return rows_needed(need.agents, need.input_tokens, resolved.defaults.chunked_prefill_size)


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
        rest -= (resolved.asked.requests or _rows(resolved, need)) * resolved.cost.slot * _drafts(resolved) / GIB
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
    slots = slots_needed(need, cost.slots_per_request, _rows(resolved, need))
    pad = 1 if resolved.rules.pays_padding_slot else 0
    drafts = _drafts(resolved)
    if drafts and resolved.rules.speculation != "upfront":
        per_slot = cost.slot * (1 + drafts / cost.slots_per_request)
        return (slots * per_slot + pad * cost.slot * (1 + drafts)) / GIB
    ring = (
        cost.ring * ((resolved.asked.requests or _rows(resolved, need)) + 1)
        if resolved.rules.replay_ring == "fixed"
        else 0
    )
    in_slot = cost.ring if resolved.rules.replay_ring == "slot" else 0
    return ((slots + pad) * (cost.slot + in_slot) + (ring if cost.ring_active else 0)) / GIB
