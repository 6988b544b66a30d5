"""A remedy is planned before it is offered, and taken back when its start would not come up."""

from typing import Any

import pytest
from test_doctor_plans import R01, R15, inputs

from tuner.doctor import diagnose_plan, plan_after, set_words, with_remedies, with_remedy
from tuner.findings import Finding, FindingId, Severity
from tuner.planner import plan
from tuner.planner.need import Need, shortfalls
from tuner.planner.resolve import pin_draft


def a_finding(flags: dict[str, Any], kind: FindingId = FindingId.LOW_HEADROOM) -> Finding:
    return Finding(id=kind, severity=Severity.WARNING, title="Something.", remedy="Do that.", flags=flags)


def test_the_plan_after_a_remedy_is_the_plan_of_the_changed_recipe():
    asked = inputs(R01)
    after = plan_after(a_finding({"mamba_full_memory_ratio": 0.3}), asked)
    assert after == plan(inputs(R01 | {"mamba_full_memory_ratio": 0.3}))


def test_a_remedy_that_fits_is_offered_with_its_plan():
    remedied = with_remedy(a_finding({"mem_fraction_static": 0.8}), inputs(R01))
    assert remedied.finding.flags == {"mem_fraction_static": 0.8}
    assert remedied.after is not None and remedied.after.fits
    assert remedied.problem == ""


@pytest.mark.parametrize(
    "flags",
    [
        {"mem_fraction_static": 0.5},
        {"max_mamba_cache_size": 2_000},
        {"mem_fraction_static": "lots"},
        {"enable_mixed_chunk": True},
        {"mamba_radix_cache_strategy": "no_buffer", "page_size": 64},
    ],
)
def test_a_remedy_whose_start_would_not_come_up_is_taken_back_with_the_reason(flags):
    remedied = with_remedy(a_finding(flags), inputs(R01))
    assert remedied.finding.flags == {}
    assert remedied.after is None
    assert remedied.problem.startswith("With ")
    assert remedied.finding.title == "Something."


def test_without_a_recipe_nothing_is_planned_and_the_flags_stay():
    remedied = with_remedy(a_finding({"mem_fraction_static": 0.5}), None)
    assert (remedied.finding.flags, remedied.after, remedied.problem) == ({"mem_fraction_static": 0.5}, None, "")


def test_what_the_recipe_says_already_is_no_remedy():
    remedied = with_remedy(a_finding({"mem_fraction_static": 0.86}), inputs(R01))
    assert (remedied.finding.flags, remedied.after) == ({}, None)


def test_a_remedy_that_turns_speculation_off_gives_the_draft_back():
    off = {name: None for name in R15 if name.startswith("speculative_")}
    asked = inputs(R15)
    remedied = with_remedy(a_finding(off, FindingId.DRAFTS_REJECTED), asked)
    assert remedied.after is not None
    assert remedied.after.kv_tokens > plan(pin_draft(asked)).kv_tokens


def test_a_remedy_that_does_not_go_far_enough_says_so():
    asked = inputs(R01 | {"mamba_full_memory_ratio": 5.0})
    short = a_finding({"mamba_full_memory_ratio": 4.0}, FindingId.POOL_BELOW_CONTEXT)
    enough = a_finding({"mamba_full_memory_ratio": 0.3}, FindingId.POOL_BELOW_CONTEXT)
    assert with_remedy(short, asked).stays
    assert not with_remedy(enough, asked).stays


@pytest.mark.parametrize(
    "flags",
    [
        R01 | {"mamba_full_memory_ratio": 2.5},
        R01 | {"mamba_full_memory_ratio": 2.5, "mem_fraction_static": 0.7},
        R01 | {"max_mamba_cache_size": 100},
        {k: v for k, v in R01.items() if k != "kv_cache_dtype"} | {"mamba_full_memory_ratio": 0.6},
        R01 | {"mem_fraction_static": 0.97, "enable_metrics": False},
        R01 | {"mem_fraction_static": 0.55},
        R15,
    ],
)
def test_what_a_plan_finds_comes_with_remedies_that_hold(flags):
    asked = inputs(flags)
    for remedied in with_remedies(diagnose_plan(asked, plan(asked)), asked):
        assert remedied.problem == ""
        if remedied.finding.id is FindingId.POOL_BELOW_CONTEXT and remedied.finding.severity is Severity.WARNING:
            assert remedied.after is not None
            assert remedied.after.kv_tokens >= remedied.after.context_len


def test_a_remedy_that_costs_the_need_of_the_recipe_says_so():
    asked = inputs(R01 | {"mamba_full_memory_ratio": 0.3, "mem_fraction_static": 0.96})
    need = Need(input_tokens=200_000, agents=2)
    assert shortfalls(plan(asked), need, 0.0) == ()
    lower = a_finding({"mem_fraction_static": 0.8})
    told = with_remedy(lower, asked, need).finding.remedy
    assert told.startswith("Do that. The need that the recipe states is then no longer met: the KV pool holds ")
    assert told.endswith(" are needed at once.")
    # A need that the remedy keeps, one that is not met anyway, and a recipe that states none.
    for other in (Need(input_tokens=50_000), Need(input_tokens=200_000, agents=9), None):
        assert with_remedy(lower, asked, other).finding.remedy == "Do that."


def test_the_flags_are_words_to_paste():
    flags = {"mem_fraction_static": 0.84, "disable_radix_cache": None, "enable_metrics": True, "no_such_flag": None}
    words = "--set mem_fraction_static=0.84 --set disable_radix_cache= --set enable_metrics=true"
    assert set_words(a_finding(flags)) == words
    assert set_words(a_finding({})) == ""
