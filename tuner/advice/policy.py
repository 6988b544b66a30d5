"""Order of waiting requests and size of prefill chunks: nothing moves between the pools."""

from __future__ import annotations

from collections.abc import Iterator

from tuner.advice.case import QUEUES, Case
from tuner.advice.model import Draft, Lever
from tuner.planner.strategy import RADIX_OFF
from tuner.units import format_seconds, format_tokens

#: Hits from which the order of waiting requests can keep more of them.
_SOME_HITS = 0.05
#: ``lpm`` falls back to ``fcfs`` in a longer queue (SGLang, all versions).
_LONGEST_LPM_QUEUE = 128
#: A token that comes this many times later than usual has waited for a chunk of somebody's prompt.
_STALL = 4.0
#: Share of busy looks in which decoding stood.
_STALLED = 0.05
_LEAST_CHUNK = 2_048
#: A prompt of as many chunks is slow for the chunks' sake where they are small.
_MANY_CHUNKS = 8
_CONSERVATIVE, _MORE = 1.0, 0.3


def proposals(case: Case) -> Iterator[Draft]:
    """Policy first, then chunks, then how much room is kept for answers."""
    yield from _longest_prefix_first(case)
    yield from _smaller_chunk(case)
    yield from _larger_chunk(case)
    yield from _more_conservative(case)


def _longest_prefix_first(case: Case) -> Iterator[Draft]:
    usage, hits = case.usage, case.usage.hit_ratio
    if str(case.flags.get("schedule_policy") or "fcfs") != "fcfs" or case.plan.strategy == RADIX_OFF:
        return
    if hits is None or hits < _SOME_HITS or usage.queue_share < QUEUES:
        return
    if (usage.peak_queued or 0) > _LONGEST_LPM_QUEUE:
        return
    yield Draft(
        id="longest-prefix-first",
        lever=Lever.POLICY,
        title="Run the waiting request with the longest cached prefix first",
        flags={"schedule_policy": "lpm"},
        reason="Of those that wait, the one whose beginning is still cached runs before that is evicted.",
        evidence=(
            f"a queue in {usage.queue_share:.0%} of {format_tokens(usage.busy_looks)} busy looks",
            f"{hits:.0%} of the prompt tokens came from the prefix cache",
        ),
        gives_up="the order in which requests came",
        risk="A request without a cached beginning may wait long; tuner measure --ab schedule_policy=fcfs,lpm tells.",
    )


def _smaller_chunk(case: Case) -> Iterator[Draft]:
    usage, chunk = case.usage, case.resolved.defaults.chunked_prefill_size
    p50, p95 = usage.itl_p50_s, usage.itl_p95_s
    if p50 is None or p95 is None or chunk < 2 * _LEAST_CHUNK or (usage.peak_running or 0) < 2:
        return
    if p95 < _STALL * p50 and usage.stalled_share < _STALLED:
        return
    yield Draft(
        id="smaller-chunk",
        lever=Lever.POLICY,
        title=f"Prefill in smaller chunks: {format_tokens(chunk)} to {format_tokens(chunk // 2)}",
        flags={"chunked_prefill_size": chunk // 2},
        reason="Tokens of running answers wait while a chunk of another prompt is computed.",
        evidence=(
            f"ITL p95 {format_seconds(p95)}, p50 {format_seconds(p50)}",
            f"decoding stood while a prompt was computed in {usage.stalled_share:.0%} of the busy looks",
        ),
        gives_up="a little prefill speed",
        risk="A long prompt takes more chunks until its first token.",
    )


def _larger_chunk(case: Case) -> Iterator[Draft]:
    usage, chunk = case.usage, case.resolved.defaults.chunked_prefill_size
    longest = usage.longest_request
    if not 0 < chunk < _LEAST_CHUNK or longest is None or longest < _MANY_CHUNKS * chunk:
        return
    if usage.itl_p50_s is not None and usage.itl_p95_s is not None and usage.itl_p95_s >= _STALL * usage.itl_p50_s:
        return
    yield Draft(
        id="larger-chunk",
        lever=Lever.POLICY,
        title=f"Prefill in larger chunks: {format_tokens(chunk)} to {format_tokens(2 * chunk)}",
        flags={"chunked_prefill_size": 2 * chunk},
        reason="Small chunks leave the card half busy while a long prompt is computed.",
        evidence=(f"prompts of {format_tokens(longest)} tokens take {longest // chunk} chunks",),
        gives_up="activation memory, and longer pauses of running answers",
    )


def _more_conservative(case: Case) -> Iterator[Draft]:
    retracted = case.usage.retracted
    now = case.flags.get("schedule_conservativeness", _CONSERVATIVE)
    if not retracted or isinstance(now, bool) or not isinstance(now, int | float) or now > _CONSERVATIVE:
        return
    new = round(now + _MORE, 2)
    yield Draft(
        id="more-conservative",
        lever=Lever.POLICY,
        title=f"Keep more room for answers: conservativeness {now:g} to {new:g}",
        flags={"schedule_conservativeness": new},
        reason="Requests were thrown out of the KV pool in the middle of their answer, and computed again.",
        evidence=(f"{retracted} requests retracted",),
        gives_up="a few requests that would have run a little earlier",
    )
