"""Which starts are not worth stopping a running server for. Pure."""

from __future__ import annotations

import msgspec

from tuner.findings import Finding, FindingId, Severity
from tuner.planner.model import Plan

#: The command line itself is wrong: SGLang dies of it whatever the memory is.
_FLAGS = frozenset({FindingId.FLAG_CONFLICT, FindingId.UNKNOWN_FLAG})
#: The pools do not fit: as sure as the memory that the plan was made with.
_POOLS = frozenset({FindingId.NO_ROOM_AT_SIZING, FindingId.SLOTS_NEGATIVE})
_ROUGH = "The memory in this plan is an estimate: the round shows whether it is right."


def weighed(findings: tuple[Finding, ...], plan: Plan | None) -> tuple[Finding, ...]:
    """Findings of a plan as what is known allows: a plan from estimates warns where a calibrated one refuses."""
    return tuple(
        msgspec.structs.replace(f, severity=Severity.WARNING, evidence=(*f.evidence, _ROUGH))
        if f.severity is Severity.FATAL and not _certain(f, plan)
        else f
        for f in findings
    )


def refusals(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Of ``weighed`` findings those that a start would surely die of."""
    return tuple(f for f in findings if f.severity is Severity.FATAL)


def _certain(finding: Finding, plan: Plan | None) -> bool:
    if finding.id in _FLAGS:
        return True
    return finding.id in _POOLS and plan is not None and plan.basis == "calibrated"
