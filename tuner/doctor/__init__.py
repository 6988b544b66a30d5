"""Findings: what is wrong or worth saying, with its evidence and a remedy. Pure rules, in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tuner.doctor.boot_rules import boot_findings
from tuner.doctor.case import LogCase
from tuner.doctor.deaths import cause_of_death
from tuner.doctor.plan_rules import RULES as _PLAN_RULES
from tuner.doctor.round_rules import not_effective
from tuner.findings import Finding, Severity
from tuner.planner.model import HEADROOM_GIB, Plan, PlanInputs
from tuner.planner.preflight import flag_conflicts
from tuner.serverlog.model import BootFacts, Phase

_ORDER = {Severity.FATAL: 0, Severity.WARNING: 1, Severity.NOTE: 2}


def diagnose_log(
    facts: BootFacts, text_tail: Sequence[str] = (), *, died: bool = False, headroom_gib: float = HEADROOM_GIB
) -> tuple[Finding, ...]:
    """What a server log tells: the cause of a death, or else what is worth saying of its pools.

    ``text_tail`` are lines of the log, at least the last ones. ``died``: the process is known to be gone without
    having been asked, though its log does not say so. ``headroom_gib``: free VRAM at ready that is wanted.
    """
    case = LogCase(facts, text_tail, died=died or facts.phase == Phase.DEAD, headroom_gib=headroom_gib)
    if case.died:
        # Advice on pools beside it would only blur what it died of.
        cause = cause_of_death(case)
        return () if cause is None else (cause,)
    return boot_findings(case)


def diagnose_plan(inputs: PlanInputs, plan: Plan) -> tuple[Finding, ...]:
    """What a plan tells before the start, worst first: flags that do not go together, pools that do not serve."""
    found = [*flag_conflicts(inputs), *(f for rule in _PLAN_RULES if (f := rule(inputs, plan)))]
    return tuple(sorted(found, key=lambda f: _ORDER[f.severity]))


def diagnose_round(asked: Mapping[str, Any], effective: Mapping[str, Any], facts: BootFacts) -> tuple[Finding, ...]:
    """Flags whose value in effect is not the asked one. ``effective`` by flag name, as read from the server."""
    return tuple(not_effective(asked, effective, facts))


__all__ = ["diagnose_log", "diagnose_plan", "diagnose_round"]
