"""What a start's log tells that is worth saying though nothing died."""

from __future__ import annotations

import re

from tuner.doctor import pool_rules, roles, serving_rules
from tuner.doctor.case import LogCase
from tuner.doctor.cause import Rule
from tuner.doctor.upstream import silent_faults
from tuner.findings import Finding, Severity
from tuner.serverlog.model import Phase

#: Also where whoever quoted the line has shortened it.
_POOL_MADE = re.compile(r"(?:KV|Mamba) Cache is allocated\.")
#: Of the pools and of what they serve, in the order in which they are told.
POOL_RULES: tuple[Rule, ...] = (
    pool_rules.states_not_hybrid,
    pool_rules.requests_capped,
    pool_rules.slots_not_as_asked,
    pool_rules.tokens_capped,
    serving_rules.retracted,
    pool_rules.pool_below_context,
    pool_rules.ratio_misfit,
    pool_rules.spec_eats_pool,
    pool_rules.low_headroom,
    pool_rules.memory_idle,
    serving_rules.prefix_cache,
    serving_rules.parser_mismatch,
    roles.role_alone,
    serving_rules.kv_scales,
    serving_rules.metrics_off,
)
#: Of the process itself, however far it came.
ALWAYS: tuple[Rule, ...] = (serving_rules.stands_still, serving_rules.health_checks)


def boot_findings(case: LogCase) -> tuple[Finding, ...]:
    """What is true of a start that did not die, warnings before notes."""
    facts = case.facts
    found = [f for rule in ALWAYS if (f := rule(case))]
    pools = (facts.kv_tokens, facts.mamba_slots, facts.ssm_state_gib, facts.requests_capped_to)
    pools_told = any(x is not None for x in pools) or case.find(_POOL_MADE) is not None
    # Before the pools were made there is nothing to judge; an excerpt without any phase may tell of a serving server.
    if pools_told or case.reached not in (Phase.LOADING, Phase.SIZING):
        found += [f for rule in POOL_RULES if (f := rule(case))]
        found += silent_faults(case)
    return tuple(sorted(found, key=lambda f: f.severity is Severity.NOTE))
