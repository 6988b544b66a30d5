"""Findings: what is wrong or worth saying, with its evidence and a remedy. Pure rules, in order.

Names are loaded when first used: a preview needs no cause of a death.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tuner.deferred import names_in

if TYPE_CHECKING:
    from tuner.doctor.card_rules import diagnose_cards
    from tuner.doctor.log_rules import diagnose_log
    from tuner.doctor.merging import merged
    from tuner.doctor.plan_rules import diagnose_plan
    from tuner.doctor.readings_rules import diagnose_readings
    from tuner.doctor.remedy import Remedied, plan_after, set_words, with_remedies, with_remedy
    from tuner.doctor.roles import diagnose_roles
    from tuner.doctor.round_rules import diagnose_round
    from tuner.doctor.watched import Watched

__all__ = [
    "Remedied",
    "Watched",
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

__getattr__ = names_in(
    __name__,
    card_rules="diagnose_cards",
    log_rules="diagnose_log",
    merging="merged",
    plan_rules="diagnose_plan",
    readings_rules="diagnose_readings",
    remedy="Remedied plan_after set_words with_remedies with_remedy",
    roles="diagnose_roles",
    round_rules="diagnose_round",
    watched="Watched",
)
