"""Public reports: every fact that a rule predicts."""

from __future__ import annotations

import pytest
from pool_checks import Fact, all_facts, fixtures


@pytest.mark.parametrize("fact", all_facts(), ids=lambda fact: f"case {fact.case} {fact.fact}")
def test_a_public_report_is_met(fact: Fact) -> None:
    assert fact.ok, f"told {fact.told:,}, planned {fact.planned:,}"


def test_every_report_has_facts_to_meet() -> None:
    assert {entry["case"] for entry in fixtures()} == {fact.case for fact in all_facts()}
