"""Memory that lies idle, or that is not there: the fraction, and requests that nobody sends or that wait."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tuner.advice.case import HOURS_THAT_TELL, QUEUES, Case
from tuner.advice.model import Draft, Lever
from tuner.planner.halving import last_that
from tuner.planner.model import LEAST_FREE_GIB, Plan
from tuner.units import format_gib, format_tokens

_STEP = 1000
_LARGEST = 990
#: Idle memory below this is not worth looking at. Shares of KV that are worth a restart: where more of it is good
#: for something, and by themselves.
_LEAST_IDLE_GIB = 0.25
_WORTH_WANTED, _WORTH = 0.03, 0.10
#: A pool of which never more than this was held does not need more.
_USED_LITTLE = 0.8
#: The most that "requests nobody sends" leaves beyond the peak.
_SPARE_REQUESTS = 1


def proposals(case: Case) -> Iterator[Draft]:
    """Idle memory into the pools, missing headroom out of them, requests as many as really run."""
    yield from _fraction_down(case)
    yield from _fraction_up(case)
    yield from _fewer_requests(case)
    yield from _more_requests(case)
    yield from _caps(case)


def highest_fraction(case: Case, changes: dict[str, object], low: float) -> float | None:
    """The highest fraction from ``low`` on that leaves the headroom at ready and something at the lowest point."""

    def leaves(step: int) -> bool:
        planned = case.after({**changes, "mem_fraction_static": step / _STEP})
        if planned is None:
            return False
        if not planned.mamba_slots and not planned.kv_tokens:
            return True
        return planned.ready_free_gib >= case.headroom_gib and planned.lowest_free_gib >= LEAST_FREE_GIB

    step = last_that(math.floor(low * _STEP), _LARGEST, leaves)
    return None if step is None else step / _STEP


def _fraction_up(case: Case) -> Iterator[Draft]:
    now, idle = case.resolved.defaults.fraction, case.plan.ready_free_gib - case.headroom_gib
    if case.plan.fits and idle < _LEAST_IDLE_GIB:
        return
    fraction = highest_fraction(case, {}, now)
    if fraction is None or fraction <= now:
        return
    planned = case.after({"mem_fraction_static": fraction})
    if planned is None or not _worth(case, planned):
        return
    evidence = [f"{format_gib(case.plan.ready_free_gib)} free at ready, {format_gib(case.headroom_gib)} are the line"]
    returned = next((t.gib for t in case.plan.terms if t.name == "draft"), 0.0)
    if case.resolved.draft - returned > 1.0:
        evidence.append(
            f"{format_gib(case.resolved.draft - returned)} of the draft come back after the pools are sized"
        )
    yield Draft(
        id="raise-fraction",
        lever=Lever.IDLE,
        title=f"Give idle memory to the pools: fraction {now:g} to {fraction:g}",
        flags={"mem_fraction_static": fraction},
        reason=f"{format_gib(idle)} beyond the headroom serve nobody."
        if case.plan.fits
        else f"The weights leave too little for the pools at {now:g}.",
        evidence=tuple(evidence),
        gives_up="free memory above the headroom line",
        risk="Loading and capture peak above the steady state; another process on the card has less room.",
        gains=("kv_tokens", "mamba_slots"),
    )


def _worth(case: Case, planned: Plan) -> bool:
    """Whether more of the pools is worth a restart: it serves the need, or the gain is not small and not known idle."""
    if case.deficit.total > 0 and case.demand.deficit(planned).total == 0:
        return True
    wanted = case.kv_wanted or case.slots_wanted
    usage, total = case.usage, case.usage.kv_total
    if not wanted and usage.hours >= HOURS_THAT_TELL and total and (usage.peak_kv_held or total) < _USED_LITTLE * total:
        return False
    return planned.kv_tokens >= (1 + (_WORTH_WANTED if wanted else _WORTH)) * case.plan.kv_tokens


def _fraction_down(case: Case) -> Iterator[Draft]:
    short = case.headroom_gib - case.plan.ready_free_gib
    if not case.plan.fits and case.plan.kv_tokens == 0:
        return
    if short < _LEAST_IDLE_GIB and case.plan.lowest_free_gib >= 0:
        return
    now = case.resolved.defaults.fraction
    fraction = highest_fraction(case, {}, 0.001)
    if fraction is None or fraction >= now:
        return
    yield Draft(
        id="lower-fraction",
        lever=Lever.IDLE,
        title=f"Leave the headroom free: fraction {now:g} to {fraction:g}",
        flags={"mem_fraction_static": fraction},
        reason="Long prompts and compilations take memory outside the pools, and a server that finds none dies.",
        evidence=(
            f"{format_gib(case.plan.ready_free_gib)} free at ready, {format_gib(case.headroom_gib)} are the line",
            f"{format_gib(case.plan.lowest_free_gib)} at the lowest point of the start",
        ),
        gives_up="KV tokens and state slots",
        gains=("ready_free_gib",),
    )


def _fewer_requests(case: Case) -> Iterator[Draft]:
    """With speculation or without a prefix cache every admitted request holds memory, whether it comes or not."""
    asked = case.resolved.asked
    costs = asked.speculation is not None or (asked.disable_radix and case.resolved.cost is not None)
    admitted = case.plan.max_running_requests * asked.attn_dp
    if not costs or case.need is None or not case.kv_wanted:
        return
    wanted = (case.rows + (0 if case.stated else _SPARE_REQUESTS)) * asked.attn_dp
    if wanted >= admitted:
        return
    yield Draft(
        id="fewer-requests",
        lever=Lever.IDLE,
        title=f"Admit only what runs: {admitted} to {wanted} requests",
        flags={"max_running_requests": wanted},
        reason="Every request that may run keeps draft states or a slot, also while it does not run.",
        evidence=(
            f"{case.rows} requests at once are needed, {admitted} are admitted",
            f"draft states take {format_gib(case.plan.spec_buffer_gib)}",
        ),
        gives_up=f"more than {wanted} requests at once",
        gains=("kv_tokens",),
    )


def _more_requests(case: Case) -> Iterator[Draft]:
    """Requests wait at the number asked for, while both pools would serve more."""
    plan, asked, usage = case.plan, case.resolved.asked, case.usage
    rows = case.rows
    if asked.requests is None or case.need is None or rows <= plan.max_running_requests:
        return
    by_slots = plan.mamba_slots // plan.slots_per_request if plan.slots_per_request else rows
    wanted = min(rows, by_slots) * asked.attn_dp
    if wanted <= asked.requests:
        return
    slots = f"{plan.mamba_slots} slots, " if plan.slots_per_request else ""
    evidence = [f"{rows} requests must be admitted for {case.need.agents} at once, {asked.requests} are asked for"]
    if rows > case.need.agents:
        evidence.append("one more than run, as SGLang counts the request whose chunks are prefilled twice")
    if usage.queue_share >= QUEUES:
        evidence.append(f"a queue in {usage.queue_share:.0%} of {format_tokens(usage.busy_looks)} busy looks")
    yield Draft(
        id="more-requests",
        lever=Lever.IDLE,
        title=f"Let more requests run: {asked.requests} to {wanted}",
        flags={"max_running_requests": wanted},
        reason=f"The pools would serve them: {slots}{format_tokens(plan.kv_tokens)} KV tokens.",
        evidence=tuple(evidence),
        gives_up="a little speed of each request while more run together",
        gains=("max_running_requests",),
    )


def _caps(case: Case) -> Iterator[Draft]:
    """Limits that were asked for and hold back what the memory would give."""
    asked, need = case.resolved.asked, case.need
    if asked.context_length is not None and need is not None:
        wanted = need.input_tokens + need.output_tokens
        if case.plan.context_len < wanted:
            yield Draft(
                id="longer-context",
                lever=Lever.IDLE,
                title="Leave the context length to the model",
                flags={"context_length": None},
                reason="A shorter context than the longest input was asked for: longer inputs are refused.",
                evidence=(
                    f"context_length {format_tokens(asked.context_length)}, input and answer take "
                    f"{format_tokens(wanted)} tokens",
                ),
                gives_up="the limit",
                gains=("longest_input_tokens",),
            )
    if asked.max_total_tokens is not None and case.kv_wanted:
        yield Draft(
            id="no-token-cap",
            lever=Lever.IDLE,
            title="Leave the KV pool as large as the memory allows",
            flags={"max_total_tokens": None},
            reason="The pool is capped below what was set aside for it.",
            evidence=(f"max_total_tokens {format_tokens(asked.max_total_tokens)}",),
            gives_up="the cap",
            gains=("kv_tokens",),
        )
