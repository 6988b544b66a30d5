"""How states are kept for prefixes: what a request reserves, and whether prefixes are found again at all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tuner.advice.case import HOURS_THAT_TELL, Case
from tuner.advice.model import Draft, Lever
from tuner.planner.strategy import EXTRA_BUFFER, LAZY, NO_BUFFER, RADIX_OFF, UNRESOLVED, supports_extra_buffer
from tuner.units import format_seconds, format_tokens

#: Hit ratios below which prefixes are not found, and below which there is nothing to find.
_FEW_HITS, _NO_HITS = 0.3, 0.02
#: A first token that takes longer than this is worth a prefix cache, seconds.
_SLOW_FIRST_TOKEN_S = 1.0
_OLD_NAME, _NAME, _RENAMED = "mamba_scheduler_strategy", "mamba_radix_cache_strategy", (0, 5, 14)


def proposals(case: Case) -> Iterator[Draft]:
    """Reuse of prefixes where it fails, fewer slots a request where they are short."""
    if case.resolved.cost is None:
        return
    yield from _find_prefixes(case)
    yield from _lazy(case)
    yield from _cache_on(case)
    yield from _cache_off(case)


def strategy_flag(case: Case) -> str:
    """The flag as the recipe spells it, else as the version does."""
    if _OLD_NAME in case.flags:
        return _OLD_NAME
    return _NAME if _NAME in case.flags or case.resolved.rules.version >= _RENAMED else _OLD_NAME


def _find_prefixes(case: Case) -> Iterator[Draft]:
    """Without an extra buffer states are kept at ends of chunks only (seen: no hit inside one chunk, 0.5.17)."""
    name, usage = case.plan.strategy, case.usage
    if name not in (NO_BUFFER, UNRESOLVED):
        return
    rules, shape = case.resolved.rules, case.inputs.shape
    if name == NO_BUFFER and not supports_extra_buffer(shape.architecture, rules):
        return
    few = usage.hit_ratio is not None and usage.hit_ratio < _FEW_HITS
    if not few and case.question.prefix_reused is not False:
        return
    chunk = case.resolved.defaults.chunked_prefill_size
    evidence = [f"strategy in force: {name}; states are kept at ends of chunks of {format_tokens(chunk)} tokens"]
    if few:
        evidence.append(f"{usage.hit_ratio:.1%} of the prompt tokens came from the prefix cache")
    if case.question.prefix_reused is False:
        evidence.append("the check of the prefix cache found no reuse")
    flags: dict[str, Any] = {strategy_flag(case): EXTRA_BUFFER}
    if case.resolved.asked.disable_overlap:
        flags["disable_overlap_schedule"] = None
    after = case.after(flags)
    more = after.slots_per_request - case.plan.slots_per_request if after is not None else 2
    yield Draft(
        id="extra-buffer",
        lever=Lever.STRATEGY,
        title="Keep states for prefixes in an extra buffer",
        flags=flags,
        reason="A shared beginning is then found again every 64 tokens, not at ends of chunks only.",
        evidence=tuple(evidence),
        gives_up=f"{more} more state slots for each request",
        risk="Fewer requests fit into the same slots.",
    )


def _lazy(case: Case) -> Iterator[Draft]:
    if not case.slots_wanted or case.plan.strategy != EXTRA_BUFFER or not case.resolved.rules.lazy:
        return
    plan = case.plan
    yield Draft(
        id="lazy-buffer",
        lever=Lever.STRATEGY,
        title="Take the extra buffer only when it is needed",
        flags={strategy_flag(case): LAZY},
        reason="The lazy extra buffer reserves one slot less for each request.",
        evidence=(
            f"{plan.mamba_slots} slots, {plan.slots_per_request} a request: {plan.max_running_requests} at once",
        ),
        gives_up="the buffer that every request had to itself",
        risk="Newer than the plain one: check prefix reuse after the start.",
        gains=("max_running_requests",),
    )


def _cache_on(case: Case) -> Iterator[Draft]:
    ttft = case.usage.ttft_p50_s
    if not case.resolved.asked.disable_radix or ttft is None or ttft < _SLOW_FIRST_TOKEN_S:
        return
    yield Draft(
        id="prefix-cache-on",
        lever=Lever.STRATEGY,
        title="Switch the prefix cache on",
        flags={"disable_radix_cache": None},
        reason="Every prompt is computed from its first token; turns of one conversation share most of theirs.",
        evidence=(f"TTFT p50 {format_seconds(ttft)}", f"strategy in force: {RADIX_OFF}"),
        gives_up="state slots for the buffers of each request",
        risk="No gain where prompts share no beginning.",
    )


def _cache_off(case: Case) -> Iterator[Draft]:
    usage, asked = case.usage, case.resolved.asked
    if asked.disable_radix or usage.hit_ratio is None or usage.hit_ratio >= _NO_HITS:
        return
    # Where states are kept badly, no hits say nothing about the prompts.
    found = case.plan.strategy in (EXTRA_BUFFER, LAZY)
    if not found or usage.hours < HOURS_THAT_TELL or not (case.kv_wanted or case.slots_wanted):
        return
    flags: dict[str, Any] = {"disable_radix_cache": True}
    if asked.strategy in (EXTRA_BUFFER, LAZY):
        flags[strategy_flag(case)] = None
    if asked.requests is None:
        flags["max_running_requests"] = case.requests_at_once
    yield Draft(
        id="prefix-cache-off",
        lever=Lever.STRATEGY,
        title="Switch the prefix cache off",
        flags=flags,
        reason="Prompts share no beginning here: without the cache a request takes one state slot.",
        evidence=(f"{usage.hit_ratio:.1%} of the prompt tokens came from the cache in {usage.hours:.1f} h",),
        gives_up="reuse of prefixes",
        risk="Turns of a conversation are computed anew, should there ever be some.",
        gains=("kv_tokens", "max_running_requests"),
    )
