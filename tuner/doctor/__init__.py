"""Findings: what is wrong or worth saying, with its evidence and a remedy. Pure rules, in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tuner.doctor.boot_rules import boot_findings
from tuner.doctor.card_rules import diagnose_cards
from tuner.doctor.case import LogCase
from tuner.doctor.deaths import cause_of_death
from tuner.doctor.plan_rules import plan_findings
from tuner.doctor.readings_rules import Watched, readings_findings
from tuner.doctor.remedy import Remedied, plan_after, set_words, with_remedies, with_remedy
from tuner.doctor.roles import diagnose_roles
from tuner.doctor.round_rules import not_effective
from tuner.findings import Finding, Severity
from tuner.metrics.model import GpuReading, Readings
from tuner.planner.model import HEADROOM_GIB, Plan, PlanInputs
from tuner.serverlog.model import BootFacts

_ORDER = {Severity.FATAL: 0, Severity.WARNING: 1, Severity.NOTE: 2}


def diagnose_log(
    facts: BootFacts,
    text_tail: Sequence[str] = (),
    *,
    died: bool = False,
    headroom_gib: float = HEADROOM_GIB,
    asked: Mapping[str, Any] | None = None,
    card_gib: float | None = None,
    quiet_s: float | None = None,
) -> tuple[Finding, ...]:
    """What a server log tells: the cause of a death, or else what is worth saying of its pools.

    ``text_tail`` are lines of the log, at least the last ones. ``died``: the process is known to be gone without
    having been asked, though its log does not say so. ``headroom_gib``: free VRAM at ready that is wanted.
    ``asked``: flags of the recipe, for a log that does not echo them. ``card_gib``: memory of the whole card.
    ``quiet_s``: seconds since a living server's log grew.
    """
    case = LogCase(
        facts, text_tail, died=died, headroom_gib=headroom_gib, asked=asked, card_gib=card_gib, quiet_s=quiet_s
    )
    if case.died:
        # Advice on pools beside it would only blur what it died of.
        cause = cause_of_death(case)
        return () if cause is None else (cause,)
    return boot_findings(case)


def diagnose_plan(inputs: PlanInputs, plan: Plan) -> tuple[Finding, ...]:
    """What a plan tells before the start, worst first: flags that do not go together, pools that do not serve."""
    return plan_findings(inputs, plan)


def diagnose_round(asked: Mapping[str, Any], effective: Mapping[str, Any], facts: BootFacts) -> tuple[Finding, ...]:
    """Flags whose value in effect is not the asked one. ``effective`` by flag name, as read from the server."""
    return tuple(not_effective(asked, effective, facts))


def diagnose_readings(
    samples: Sequence[Readings],
    *,
    gpus: Sequence[GpuReading] = (),
    flags: Mapping[str, Any] | None = None,
    facts: BootFacts | None = None,
    headroom_gib: float = HEADROOM_GIB,
    alone_prefill_tokens_per_s: float | None = None,
    computed_tokens: float | None = None,
) -> tuple[Finding, ...]:
    """What looks at a running server tell, oldest first: one is enough for some rules, an hour is better.

    ``flags`` are the recipe's, ``facts`` the log's. ``alone_prefill_tokens_per_s``: of a cold prompt that had the
    server to itself, where one was measured; ``computed_tokens``: prompt tokens computed so far, where known.
    """
    return readings_findings(
        Watched(
            samples,
            gpus=gpus,
            flags=flags,
            facts=facts,
            headroom_gib=headroom_gib,
            alone_prefill_tokens_per_s=alone_prefill_tokens_per_s,
            computed_tokens=computed_tokens,
        )
    )


def merged(*groups: Sequence[Finding]) -> tuple[Finding, ...]:
    """Findings of several sources, worst first; of one id those of the first source that has it."""
    found: list[Finding] = []
    for group in groups:
        known = {f.id for f in found}
        found += [f for f in group if f.id not in known]
    return tuple(sorted(found, key=lambda f: _ORDER[f.severity]))


__all__ = [
    "Remedied",
    "diagnose_cards",
    "diagnose_log",
    "diagnose_plan",
    "diagnose_readings",
    "diagnose_roles",
    "diagnose_round",
    "merged",
    "plan_after",
    "set_words",
    "with_remedies",
    "with_remedy",
]
