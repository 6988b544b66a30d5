"""Needs to flags, with the findings of what comes out. Pure."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from tuner.doctor import diagnose_plan
from tuner.planner.model import CAPTURE_PEAK, PlanInputs
from tuner.planner.need import Need
from tuner.planner.solve import Solution, solve


def solved(inputs: PlanInputs, need: Need, keep: Collection[str] = ()) -> Solution:
    """``planner.solve`` with the findings of the plan it proposes, past the peak of the graphs' capture.

    Raises CannotPlan with one sentence.
    """
    inputs = msgspec.structs.replace(inputs, capture_peak=max(inputs.capture_peak, CAPTURE_PEAK))
    solution = solve(inputs, need, keep=keep)
    findings = diagnose_plan(solution.inputs, solution.plan)
    return msgspec.structs.replace(solution, plan=msgspec.structs.replace(solution.plan, findings=findings))
