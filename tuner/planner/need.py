"""What a server must be good for, and what of it a plan lacks."""

from __future__ import annotations

import math

import msgspec

from tuner.planner.admission import rows_needed, tokens_together
from tuner.planner.forward import chunk_counts_twice
from tuner.planner.model import CannotPlan, Plan
from tuner.planner.resolve import Resolved
from tuner.units import format_gib, format_tokens


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """What a server must be good for, on one attention-DP rank.

    ``agents`` inputs, sent at once, run together to the end of answers of ``output_tokens``, none retracted.
    ``warm_prefixes`` are conversations kept beside those that run, each ``warm_tokens`` long (the longest input when
    None); ``headroom_gib`` is free VRAM at ready (the line of the inputs when None), ``least_free_gib`` at the lowest
    point of the start.
    """

    input_tokens: int
    agents: int = 1
    warm_prefixes: int = 0
    headroom_gib: float | None = None
    warm_tokens: int | None = None
    output_tokens: int = 1
    least_free_gib: float = 0.0


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
    rows = rows_of(need, result)
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
    if result.lowest_free_gib < need.least_free_gib:
        missing.append(
            f"The start comes down to {format_gib(result.lowest_free_gib)} free, {format_gib(need.least_free_gib)} are "
            "to stay free all the way."
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


def longest_answer(need: Need, result: Plan, kv_tokens: int) -> int:
    """The most tokens of each answer with which the agents still run together in a pool of ``kv_tokens``; 0: none."""
    fits = [0, kv_tokens]
    while fits[0] < fits[1]:
        middle = (fits[0] + fits[1] + 1) // 2
        asked = msgspec.structs.replace(need, output_tokens=middle)
        fits = [middle, fits[1]] if tokens_needed(asked, result) <= kv_tokens else [fits[0], middle - 1]
    return min(fits[0], max(0, result.context_len - need.input_tokens))


def rows_of(need: Need, result: Plan) -> int:
    """Requests that a plan must admit for the agents to run together (``admission.rows_needed``)."""
    chunk = int(result.in_force.get("chunked_prefill_size") or 0)
    return rows_needed(need.agents, need.input_tokens, chunk, counted_twice=result.chunk_counts_twice)


def rows_for(resolved: Resolved, need: Need) -> int:
    """As ``rows_of``, before there is a plan."""
    chunk = resolved.prefill_chunk
    return rows_needed(need.agents, need.input_tokens, chunk, counted_twice=chunk_counts_twice(resolved))


def check_need(need: Need) -> None:
    """Raises CannotPlan with one sentence when the need makes no sense."""
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


def nearness(result: Plan, need: Need, headroom_gib: float) -> float:
    """How near a plan comes, from 0 to 1 for each part of the need; a plan that does not start is last."""
    if not result.fits:
        return -1.0
    rows = rows_of(need, result)
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
