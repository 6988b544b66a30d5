"""Findings for a person: what it is, the evidence, the next step, the flags to paste, and what they would give."""

from __future__ import annotations

from tuner.cli.output import say
from tuner.doctor import Remedied, set_words
from tuner.planner.model import Plan
from tuner.units import format_gib, format_tokens


def say_remedied(findings: tuple[Remedied, ...]) -> None:
    """Findings as text: what it is, the evidence, the next step, the flags to paste, and what they would give."""
    for remedied in findings:
        finding = remedied.finding
        say(f"  {finding.severity:<8}{finding.id}: {finding.title}")
        for line in finding.evidence:
            say(f"          {line}")
        if finding.remedy:
            say(f"          -> {finding.remedy}")
        if words := set_words(finding):
            say(f"          {words}")
        if remedied.after is not None:
            less = "; the finding stays, though less so" if remedied.stays else ""
            say(f"             would give {_in_words(remedied.after)}{less}")
        if remedied.problem:
            say(f"          {remedied.problem}")


def _in_words(plan: Plan) -> str:
    slots = f", {format_tokens(plan.mamba_slots)} state slots" if plan.bytes_per_slot else ""
    return (
        f"{format_tokens(plan.kv_tokens)} KV tokens{slots}, {plan.max_running_requests} requests at once, "
        f"{format_gib(plan.ready_free_gib)} free at ready"
    )
