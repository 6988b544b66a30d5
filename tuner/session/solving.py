"""Needs to flags, with the findings of what comes out. Pure."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from tuner.doctor import diagnose_plan
from tuner.findings import Finding, FindingId
from tuner.planner.model import CAPTURE_PEAK, LEAST_FREE_GIB, Plan, PlanInputs
from tuner.planner.need import Need, rows_of, slots_needed
from tuner.planner.solve import Solution, solve


def solved(inputs: PlanInputs, need: Need, keep: Collection[str] = ()) -> Solution:
    """``planner.solve`` with the findings of the plan it proposes, past the peak of the graphs' capture.

    No start is proposed that comes down to less free memory than any start was seen to come up from
    (``LEAST_FREE_GIB``); findings about more than is needed are left out. Raises CannotPlan with one sentence.
    """
    inputs = msgspec.structs.replace(inputs, capture_peak=max(inputs.capture_peak, CAPTURE_PEAK))
    safe = msgspec.structs.replace(need, least_free_gib=max(need.least_free_gib, LEAST_FREE_GIB))
    solution = solve(inputs, safe, keep=keep)
    found = diagnose_plan(solution.inputs, solution.plan)
    findings = tuple(f for f in found if not _moot(f, solution.plan, need))
    return msgspec.structs.replace(solution, plan=msgspec.structs.replace(solution.plan, findings=findings))


def _moot(finding: Finding, plan: Plan, need: Need) -> bool:
    """Whether a finding wants more than the need asks for: then it would only speak against the answer."""
    match finding.id:
        case FindingId.REQUESTS_CAPPED_BY_SLOTS | FindingId.ASKED_NOT_EFFECTIVE:
            return plan.max_running_requests >= rows_of(need, plan)
        case FindingId.POOL_BELOW_CONTEXT:
            return plan.longest_input_tokens >= need.input_tokens
        case FindingId.RATIO_MISFIT:
            # Its remedy knows of no conversations to keep warm.
            return bool(finding.flags.get("max_mamba_cache_size", 0) < _slots(plan, need))
        case _:
            return False


def _slots(plan: Plan, need: Need) -> int:
    return slots_needed(need, plan.slots_per_request, rows_of(need, plan))
