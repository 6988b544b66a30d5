"""An answer to a need does not speak against itself."""

from __future__ import annotations

import pytest

from tuner.findings import Finding, FindingId, Severity
from tuner.paths import packaged_presets
from tuner.planner.model import LEAST_FREE_GIB, PlanInputs
from tuner.planner.need import Need, rows_of, shortfalls, slots_needed
from tuner.planner.solve import Solution
from tuner.recipe import load
from tuner.session.planning import Given, plan_inputs
from tuner.session.solving import solved

PRESETS = ("qwen3.8-27b-r01", "qwen3.8-27b-r15", "demo")
NEEDS = (
    Need(input_tokens=90_000, agents=2),
    Need(input_tokens=200_000, agents=2),
    Need(input_tokens=262_000),
    Need(input_tokens=120_000, agents=3),
    Need(input_tokens=8_000, agents=16),
    Need(input_tokens=8_000, agents=2, warm_prefixes=40),
)


def inputs_of(preset: str) -> PlanInputs:
    recipe = load(packaged_presets() / f"{preset}.toml")
    return plan_inputs(recipe, given=Given(free_before_gib=46.83, free_after_gib=19.29))


def warned(solution: Solution, *ids: FindingId) -> list[Finding]:
    return [f for f in solution.plan.findings if f.id in ids and f.severity is not Severity.NOTE]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("need", NEEDS)
def test_a_met_need_comes_without_a_warning_that_it_is_not_met(preset: str, need: Need) -> None:
    solution = solved(inputs_of(preset), need)
    plan = solution.plan
    assert shortfalls(plan, need, plan.headroom_line_gib) == () or not solution.met
    if not solution.met:
        return
    assert not warned(
        solution,
        FindingId.REQUESTS_CAPPED_BY_SLOTS,
        FindingId.ASKED_NOT_EFFECTIVE,
        FindingId.POOL_BELOW_CONTEXT,
        FindingId.LOW_HEADROOM,
    )
    assert plan.lowest_free_gib >= LEAST_FREE_GIB
    for finding in plan.findings:
        if finding.id is FindingId.RATIO_MISFIT:
            kept = finding.flags["max_mamba_cache_size"]
            assert kept >= slots_needed(need, plan.slots_per_request, rows_of(need, plan))


def test_a_need_that_is_not_met_keeps_the_warnings_about_it() -> None:
    solution = solved(inputs_of("qwen3.8-27b-r01"), Need(input_tokens=250_000, agents=3))
    assert not solution.met
    assert solution.missing


def test_one_agent_is_counted_as_one() -> None:
    reasons = " ".join(solved(inputs_of("demo"), Need(input_tokens=262_000)).reasons)
    assert "1 agent needs" in reasons and "1 agents" not in reasons
