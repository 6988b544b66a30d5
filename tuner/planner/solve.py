"""From needs to flags: the fewest changes that the forward rule confirms.

A candidate is a set of switches (requests, state dtype, KV dtype, strategy, speculation) and one way to move memory
(fraction, ratio, slots). Closed forms only propose; ``plan`` decides.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import msgspec

from tuner.planner.changes import changed_flags, changes_between
from tuner.planner.forward import plan
from tuner.planner.model import CannotPlan, Plan, PlanInputs
from tuner.planner.moves import MOVERS, Mover
from tuner.planner.need import Need, check_need, nearness, shortfalls
from tuner.planner.resolve import pin_draft
from tuner.planner.switches import Switch, switches_for

#: Flags that a solution may change, or their beginnings.
MAY_CHANGE = (
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
    check_need(need)
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
                changes=changes_between(inputs.flags, all_flags),
                reasons=(*(switch.reason for switch in switches), *reasons),
                inputs=changed,
                plan=result,
            )
            if not shortfalls(result, need, headroom):
                return _solution(candidate, ())
            if best is None or nearness(result, need, headroom) > nearness(best.plan, need, headroom) + 1e-9:
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


def _touches(changes: Iterable[str], keep: Collection[str]) -> bool:
    return any(name.startswith(kept) for name in changes for kept in keep)


def _by_changes(
    inputs: PlanInputs, need: Need, keep: tuple[str, ...]
) -> Iterator[tuple[tuple[Switch, ...], tuple[Mover, ...]]]:
    """Candidates by how many flags they change, cheaper ones first."""
    needed, switches = switches_for(inputs, need)
    needed, switches = ([s for s in some if not _touches(s.flags, keep)] for some in (needed, switches))
    combinations = [
        (*needed, *chosen) for size in range(len(switches) + 1) for chosen in itertools.combinations(switches, size)
    ]
    combinations.sort(key=lambda chosen: (len(chosen), sum(switch.price for switch in chosen)))
    for total in range(len(needed), len(needed) + len(switches) + len(MOVERS)):
        for chosen in combinations:
            moved = total - len(chosen)
            if 0 <= moved < len(MOVERS):
                yield chosen, MOVERS[moved]
