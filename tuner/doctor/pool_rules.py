"""What a start's log tells of its pools: who is capped, which pool starves, what lies idle, what speculation costs."""

from __future__ import annotations

import math
import re

import msgspec

from tuner.doctor import misfit
from tuner.doctor.admitting import Capped, States, more_requests
from tuner.doctor.case import LogCase, finding
from tuner.doctor.headroom import headroom_severity
from tuner.doctor.sizes import MOST_SLOTS_PER_REQUEST, Pools, more_kv, pools_of_log, raised_fraction
from tuner.findings import Finding, FindingId, Severity
from tuner.planner.forward import longest_input
from tuner.units import format_gib, format_tokens

#: A pool this little above the context is lost by the next upgrade (408 tokens were, in one report).
_THIN = 0.01
_SPEC_SHARE = 0.15
#: Free memory that is idle whatever the line is, GiB.
_IDLE_GIB = 10.0
#: Memory of the draft that comes back after sizing, worth acting on, GiB.
_BACK_GIB = 0.5
#: More requests than this are a default of somebody's, and no number to size slots by.
_MOST_REQUESTS = 4096

_CAPPED = re.compile(r"is capped to \d+ by the mamba state|was reduced from the requested \d+ to")
_CAP_SHORT = re.compile(r"max_mamba_cache_size: (?P<slots>\d{1,9}) -> max_running_requests=(?P<requests>\d{1,9})")
_CAP_NUMBERS = re.compile(r"\(max_mamba_cache_size=(?P<slots>\d{1,12}), (?P<per_request>\d{1,3}) state slots per")
_PREFILL_GRAPHS = re.compile(r"Disabling auto-selected prefill CUDA graph: only (?P<gib>[\d.]+) GiB is free")
_KV_TOKENS = re.compile(r"KV Cache is allocated\..{0,80}#tokens: (?P<tokens>\d{1,12})")
_TOO_LONG = re.compile(
    r"(?:Input length \((?P<input>\d+) tokens\) exceeds the maximum allowed length \((?P<allowed>\d+) tokens\)"
    r"|input \((?P<input2>\d+) tokens\) is longer than the model's context length \((?P<allowed2>\d+) tokens\))"
)


def states_not_hybrid(case: LogCase) -> Finding | None:
    """Flags for states on a model that the server sees none in."""
    facts = case.facts
    asked = [n for n in ("max_mamba_cache_size", "mamba_ssm_dtype") if case.argument(n) is not None]
    if facts.mamba_slots == 0 or (facts.hybrid is False and asked):
        return finding(
            FindingId.STATES_NOT_HYBRID,
            Severity.WARNING,
            "Flags for states were set, but the server does not see the model as hybrid.",
            evidence=(f"state slots: {facts.mamba_slots or 'none'}", *(f"{n}={case.argument(n)}" for n in asked)),
            remedy="Check the model class in config.json and the SGLang version; without states these do nothing.",
            flags=dict.fromkeys(asked),
        )
    return None


def requests_capped(case: LogCase) -> Finding | None:
    """Fewer requests admitted than asked, and by which pool."""
    facts = case.facts
    asked, admitted = case.number("max_running_requests"), facts.max_running_requests
    admitted = facts.requests_capped_to if admitted is None else admitted
    slots, per_request = facts.mamba_slots, facts.slots_per_request
    line = case.find(_CAPPED)
    if line and (numbers := case.find_after(line, _CAP_NUMBERS)) and slots is None:
        slots, per_request = int(numbers.match["slots"]), int(numbers.match["per_request"])
    if admitted is None and (short := case.find(_CAP_SHORT)):
        line, slots, admitted = short, int(short.match["slots"]), int(short.match["requests"])
    if admitted is None:
        return None
    below = asked is not None and admitted < asked
    if not below and (facts.requests_capped_to is None or slots is None):
        return None
    evidence = [line.line] if line else []
    if asked is not None:
        evidence.append(f"asked: {asked:.0f}, admitted: {admitted}")
    if below and asked is not None and not _by_slots(slots, admitted) and facts.requests_capped_to is None:
        return _capped_by_kv(asked, admitted, evidence)
    if not facts.hybrid and slots is None and asked is not None:
        return _capped_by_kv(asked, admitted, evidence)
    pools = pools_of_log(case)
    per_request = per_request or pools.per_request or (max(1, slots // admitted) if slots and admitted else None)
    if slots is not None:
        evidence.append(f"{slots} state slots, {per_request} for each request")
    pools = msgspec.structs.replace(pools, slots=slots or 0, requests=admitted, per_request=per_request)
    remedy, flags = more_requests(
        Capped(
            pools=pools,
            asked=int(asked) if asked and asked <= _MOST_REQUESTS else None,
            in_16_bit=_in_16_bit(case),
            narrow=_narrow(case, pools),
        )
    )
    return finding(
        FindingId.REQUESTS_CAPPED_BY_SLOTS,
        Severity.WARNING,
        f"The state slots admit {admitted} request{'s' if admitted != 1 else ''} at once"
        + (f", {asked:.0f} were asked." if asked is not None and below else "."),
        evidence=evidence,
        remedy=remedy,
        flags=flags,
    )


def _by_slots(slots: int | None, admitted: int) -> bool:
    """Whether the slots, shared out among requests, come to just this number (up to 0.5.16 no line says so)."""
    return bool(slots) and any((slots or 0) // share == admitted for share in range(1, MOST_SLOTS_PER_REQUEST + 1))


def _capped_by_kv(asked: float, admitted: int, evidence: list[str]) -> Finding:
    return finding(
        FindingId.ASKED_NOT_EFFECTIVE,
        Severity.WARNING,
        f"Only {admitted} requests run at once, {asked:.0f} were asked.",
        evidence=evidence,
        remedy="The KV pool limits them: give it more memory, or ask for fewer.",
    )


def _narrow(case: LogCase, pools: Pools) -> States | None:
    """The states with the recurrent part in half its bytes; None where they are so already or sizes are not told."""
    facts = case.facts
    if _in_16_bit(case) or facts.ssm_state_gib is None or not pools.slots or not pools.requests:
        return None
    return States(
        slot_gib=(facts.ssm_state_gib / 2 + (facts.conv_state_gib or 0.0)) / (pools.slots + 1),
        draft_gib=((facts.spec_state_gib or 0.0) / 2 + (facts.spec_conv_gib or 0.0)) / (pools.requests + 1),
    )


def _in_16_bit(case: LogCase) -> bool:
    return case.argument("mamba_ssm_dtype") in ("bfloat16", "float16")


def slots_not_as_asked(case: LogCase) -> Finding | None:
    """Slots pinned to another number than the log shows: the log is another start's, or the server changed it."""
    asked, slots = case.number("max_mamba_cache_size"), case.facts.mamba_slots
    if asked is None or slots is None or asked == slots:
        return None
    more = slots > asked
    return finding(
        FindingId.ASKED_NOT_EFFECTIVE,
        Severity.WARNING,
        f"The state pool has {slots} slots, {asked:.0f} were asked.",
        evidence=(f"max_mamba_cache_size={asked:.0f}", f"Mamba Cache is allocated. max_mamba_cache_size: {slots}"),
        remedy="The log belongs to another command, or the flag did not reach the server: trust the log's number."
        if more
        else "The slots that fit are what counts; the decode role of PD ignores the flag up to 0.5.9.",
    )


def tokens_capped(case: LogCase) -> Finding | None:
    """More KV tokens asked than there are."""
    asked, tokens = case.number("max_total_tokens"), case.facts.kv_tokens
    if asked is None or tokens is None or asked <= tokens + (case.number("page_size") or 1):
        return None
    return finding(
        FindingId.ASKED_NOT_EFFECTIVE,
        Severity.WARNING,
        f"The KV pool holds {format_tokens(tokens)} tokens, {format_tokens(int(asked))} were asked.",
        evidence=(f"max_total_tokens={asked:.0f}", f"max_total_num_tokens={tokens}"),
        remedy="max_total_tokens can only lower the pool: leave it out.",
        flags={"max_total_tokens": None},
    )


def pool_below_context(case: LogCase) -> Finding | None:
    """Inputs that the context allows and the pool refuses."""
    tokens, context = case.facts.kv_tokens, case.facts.context_len
    if tokens is None and (shortened := case.find(_KV_TOKENS)):
        tokens = int(shortened.match["tokens"])
    if context is None and (asked := case.number("context_length")):
        context = int(asked)
    if tokens is None or context is None:
        return _input_refused(case, context)
    evidence = (f"KV pool: {format_tokens(tokens)} tokens", f"context: {format_tokens(context)} tokens")
    if tokens < context:
        return finding(
            FindingId.POOL_BELOW_CONTEXT,
            Severity.WARNING,
            f"Inputs above {format_tokens(longest_input(context, tokens))} tokens are refused, though "
            "the context is longer.",
            evidence=evidence,
            remedy="Give KV more (a higher fraction where memory lies idle, a smaller mamba_full_memory_ratio, "
            "fp8 KV), or set context_length to what you need.",
            flags=more_kv(pools_of_log(case), context),
        )
    if tokens < context * (1 + _THIN):
        return finding(
            FindingId.POOL_BELOW_CONTEXT,
            Severity.NOTE,
            f"The KV pool is only {format_tokens(tokens - context)} tokens larger than one full context.",
            evidence=evidence,
            remedy="Any change that costs a little memory makes the longest inputs fail; leave some margin.",
        )
    return None


def _input_refused(case: LogCase, context: int | None) -> Finding | None:
    """A refusal alone tells the pool, where the context is longer."""
    seen = case.find(_TOO_LONG)
    if not seen:
        return None
    allowed = int(seen.match["allowed"] or seen.match["allowed2"])
    if context is not None and allowed >= context - 16:
        return None
    return finding(
        FindingId.POOL_BELOW_CONTEXT,
        Severity.WARNING,
        f"Inputs above {format_tokens(allowed)} tokens are refused"
        + (f", though the context is {format_tokens(context)}." if context else "."),
        evidence=(seen.line,),
        remedy="Compare max_total_num_tokens with context_len in the log of the start: give KV more, or look there for "
        "why the pool came out so small.",
    )


def ratio_misfit(case: LogCase) -> Finding | None:
    """One pool starves while the other has several times what it can use."""
    return misfit.ratio_misfit(pools_of_log(case))


def memory_idle(case: LogCase) -> Finding | None:
    """Gigabytes that no pool got."""
    free, pools = case.ready_free_gib, pools_of_log(case)
    if free is None or free < max(_IDLE_GIB, 2 * case.headroom_gib) or case.facts.kv_tokens is None:
        return None
    return finding(
        FindingId.MEMORY_IDLE,
        Severity.NOTE,
        f"{format_gib(pools.idle_gib)} of the card lie idle beyond the headroom.",
        evidence=(f"free after the start: {format_gib(free)}, wanted: {format_gib(case.headroom_gib)}",),
        remedy="Raise mem_fraction_static before you move memory between the pools, if either is short.",
        flags=raised_fraction(pools, pools.idle_gib),
    )


def low_headroom(case: LogCase) -> Finding | None:
    """Less free memory at ready than wanted."""
    free, cut = case.ready_free_gib, case.find(_PREFILL_GRAPHS)
    if free is None or free >= case.headroom_gib:
        return None
    evidence = [f"free after the start: {format_gib(free)}, wanted: {format_gib(case.headroom_gib)}"]
    if cut:
        evidence.append(cut.line)
    return finding(
        FindingId.LOW_HEADROOM,
        headroom_severity(free, case.headroom_gib),
        f"Only {format_gib(free)} of the card stay free.",
        evidence=evidence,
        remedy="Long prompts and compilations take memory outside the pools: lower mem_fraction_static, "
        "or watch the first long inputs.",
        flags=_lower_fraction(case, case.headroom_gib - free),
    )


def _lower_fraction(case: LogCase, gib: float) -> dict[str, float]:
    fraction, before = case.number("mem_fraction_static"), case.facts.free_before_gib
    if fraction is None or not before:
        return {}
    lower = math.floor(100 * max(0.0, fraction - gib / before)) / 100
    return {"mem_fraction_static": lower} if lower > 0.1 else {}


def spec_eats_pool(case: LogCase) -> Finding | None:
    """What speculation takes from the pools, and what of it comes back too late for them."""
    facts = case.facts
    weights = (facts.draft.weights_gib if facts.draft else None) or 0.0
    pool = (facts.draft.kv_gib if facts.draft else None) or 0.0
    buffers = (facts.spec_state_gib or 0.0) + (facts.spec_conv_gib or 0.0)
    pools = (facts.kv_gib or 0.0) + (facts.ssm_state_gib or 0.0) + (facts.conv_state_gib or 0.0)
    cost, back = weights + pool + buffers, _comes_back_gib(case)
    # Where pools of unknown size were left next to nothing, what came back is the whole story.
    starved = back is not None and back >= _BACK_GIB and not pools and back > (_left_after_pools(case) or 0.0)
    if not cost or (not starved and (not pools or cost < _SPEC_SHARE * (cost + pools))):
        return None
    evidence = [
        f"draft weights {format_gib(weights)}, draft states {format_gib(buffers)}, draft KV {format_gib(pool)}",
        f"pools {format_gib(pools)}" if pools else "",
    ]
    flags: dict[str, object] = {}
    if back is not None and back >= _BACK_GIB:
        evidence.append(f"{format_gib(back)} came back after the pools were sized")
        sizes = pools_of_log(case)
        flags = raised_fraction(sizes, min(back, sizes.idle_gib))
    unset = case.argument("max_running_requests") is None and case.flags_known
    return finding(
        FindingId.SPEC_EATS_POOL,
        Severity.WARNING if starved or unset or buffers > pools else Severity.NOTE,
        f"Speculation takes {format_gib(cost)} that the pools do without.",
        evidence=evidence,
        remedy="Set max_running_requests to what really runs at once (each keeps draft states), draft fewer tokens, "
        "or raise the fraction by what comes back.",
        flags=flags,
    )


def _left_after_pools(case: LogCase) -> float | None:
    facts = case.facts
    told = facts.free_after_draft_pools_gib
    return told if told is not None else facts.free_after_pools_gib


def _comes_back_gib(case: LogCase) -> float | None:
    """Embedding and head of the draft, freed only after the pools were sized."""
    left = _left_after_pools(case)
    if case.facts.free_before_graphs_gib is None or left is None:
        return None
    return case.facts.free_before_graphs_gib - left
