"""Findings of plans, and of what came of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from tuner import shapes
from tuner.doctor import diagnose_plan, diagnose_round
from tuner.findings import FindingId, Severity
from tuner.modelcard import shape_from_config
from tuner.planner import plan
from tuner.planner.model import LEAST_FREE_GIB, PlanInputs, Source, Sourced
from tuner.serverlog.model import BootFacts

SHAPES = Path(shapes.__file__).parent
R15: dict[str, Any] = {
    "mem_fraction_static": 0.98,
    "kv_cache_dtype": "fp8_e4m3",
    "max_running_requests": 3,
    "chunked_prefill_size": 4096,
    "mamba_ssm_dtype": "bfloat16",
    "mamba_full_memory_ratio": 0.9,
    "mamba_radix_cache_strategy": "extra_buffer",
    "speculative_algorithm": "NEXTN",
    "speculative_num_steps": 1,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 2,
    "enable_metrics": True,
}
R01: dict[str, Any] = {k: v for k, v in R15.items() if not k.startswith("speculative_")} | {"mem_fraction_static": 0.86}


def inputs(flags: dict[str, Any], model: str = "qwen3.8-27b-fp8-text") -> PlanInputs:
    config = json.loads((SHAPES / f"{model}.json").read_text())
    free_after = 13.76 if flags.get("speculative_algorithm") else 19.29
    return PlanInputs(
        shape=shape_from_config(config, model),
        flags=flags,
        free_before=Sourced(46.83, Source.BOOT_LOG),
        free_after=Sourced(free_after, Source.BOOT_LOG),
    )


def found(flags: dict[str, Any], model: str = "qwen3.8-27b-fp8-text") -> dict[FindingId, Any]:
    asked = inputs(flags, model)
    return {f.id: f for f in diagnose_plan(asked, plan(asked))}


def test_the_articles_r15_is_tight_and_pays_for_speculation_but_runs():
    ids = found(R15)
    assert set(ids) == {FindingId.LOW_HEADROOM, FindingId.POOL_BELOW_CONTEXT, FindingId.SPEC_EATS_POOL}
    assert ids[FindingId.POOL_BELOW_CONTEXT].severity == Severity.NOTE
    assert ids[FindingId.LOW_HEADROOM].flags["mem_fraction_static"] < 0.98


def test_a_start_that_comes_near_to_its_end_is_warned_of_though_much_is_free_at_ready():
    # Without graphs 4.6 GiB come back after sizing: 5 GiB are free at ready, and on the way there hardly any.
    flags = R15 | {"disable_cuda_graph": True}
    near = found(flags | {"mamba_full_memory_ratio": 0.118})[FindingId.LOW_HEADROOM]
    assert near.severity is Severity.WARNING
    assert near.title == "Only 0.22 GiB would be free at the lowest point of the start."
    assert near.flags == {"mem_fraction_static": 0.97}
    mended = inputs(flags | {"mamba_full_memory_ratio": 0.118} | near.flags)
    assert plan(mended).lowest_free_gib >= LEAST_FREE_GIB
    # As low as the recordings came up from: 0.44 GiB.
    assert FindingId.LOW_HEADROOM not in found(flags)


def test_pinned_slots_are_not_mended_by_narrower_states():
    ids = found(R01 | {"max_mamba_cache_size": 6, "max_running_requests": 5, "mamba_ssm_dtype": "float32"})
    assert ids[FindingId.REQUESTS_CAPPED_BY_SLOTS].flags == {"max_mamba_cache_size": 26}
    assert "bfloat16" not in ids[FindingId.REQUESTS_CAPPED_BY_SLOTS].remedy


def test_a_fraction_below_the_weights_is_refused_before_the_start():
    ids = found(R01 | {"mem_fraction_static": 0.55})
    refused = ids[FindingId.SLOTS_NEGATIVE]
    assert refused.severity == Severity.FATAL
    assert refused.flags["mem_fraction_static"] > 0.59
    again = inputs(R01 | refused.flags)
    assert plan(again).fits


def test_more_requests_than_slots_are_told_with_the_slots_needed():
    flags = R01 | {"max_running_requests": 20}
    capped = found(flags)[FindingId.REQUESTS_CAPPED_BY_SLOTS]
    assert capped.flags == {"max_mamba_cache_size": 20 * 5 + 1}
    wide = {k: v for k, v in flags.items() if k != "mamba_ssm_dtype"}
    capped = found(wide | {"max_running_requests": 12})[FindingId.REQUESTS_CAPPED_BY_SLOTS]
    assert capped.flags == {"mamba_ssm_dtype": "bfloat16"}
    # 321 slots would take 23 GiB, and both pools have 12.
    capped = found(flags | {"max_running_requests": 64})[FindingId.REQUESTS_CAPPED_BY_SLOTS]
    assert capped.flags == {"max_running_requests": 16}


def test_a_pool_below_the_context_names_the_longest_input():
    ids = found(R01 | {"mamba_full_memory_ratio": 2.5})
    assert ids[FindingId.POOL_BELOW_CONTEXT].severity == Severity.WARNING
    assert ids[FindingId.RATIO_MISFIT].flags["max_mamba_cache_size"] == 3 * (5 + 2) + 1


def test_the_remedy_of_a_misfit_gives_kv_what_it_promises():
    flags = R01 | {"mamba_full_memory_ratio": 2.5}
    misfit = found(flags)[FindingId.RATIO_MISFIT]
    before, after = plan(inputs(flags)), plan(inputs(flags | misfit.flags))
    assert after.kv_tokens > before.kv_tokens
    assert after.max_running_requests == before.max_running_requests


@pytest.mark.parametrize(
    ("change", "severity"),
    [
        ({"mamba_radix_cache_strategy": None}, Severity.WARNING),
        ({"mamba_radix_cache_strategy": "auto"}, Severity.WARNING),
        ({"mamba_radix_cache_strategy": "no_buffer"}, Severity.NOTE),
        ({"disable_radix_cache": True}, Severity.WARNING),
    ],
)
def test_a_prefix_cache_that_will_not_hit_is_told(change, severity):
    flags = {k: v for k, v in (R01 | change).items() if v is not None}
    assert found(flags)[FindingId.PREFIX_CACHE_OFF].severity == severity
    assert FindingId.PREFIX_CACHE_OFF not in found(R01)


def test_flags_that_do_not_go_together_are_refused():
    ids = found(R15 | {"enable_unified_memory": True})
    assert ids[FindingId.FLAG_CONFLICT].severity in (Severity.FATAL, Severity.WARNING)
    assert FindingId.FLAG_CONFLICT in found(R01 | {"enable_mixed_chunk": True})
    assert FindingId.FLAG_CONFLICT not in found(R01)


def test_a_server_without_metrics_is_a_blind_round():
    assert found(R01 | {"enable_metrics": False})[FindingId.METRICS_OFF].flags == {"enable_metrics": True}


def test_flags_for_states_do_nothing_for_a_model_without():
    ids = found(R01 | {"mem_fraction_static": 0.8}, "qwen3-dense-small")
    assert set(ids[FindingId.STATES_NOT_HYBRID].flags) >= {"mamba_ssm_dtype", "mamba_full_memory_ratio"}


def test_findings_come_worst_first():
    asked = inputs(R15 | {"enable_metrics": False, "enable_mixed_chunk": True})
    severities = [f.severity for f in diagnose_plan(asked, plan(asked))]
    order = [Severity.FATAL, Severity.WARNING, Severity.NOTE]
    assert severities == sorted(severities, key=order.index)


def test_asked_and_admitted_requests_are_compared():
    facts = BootFacts(requests_capped_to=9, mamba_slots=45, max_running_requests=9)
    (one,) = diagnose_round({"max_running_requests": 32}, {"max_running_requests": 9}, facts)
    assert diagnose_round({"max_running_requests": 32}, {"max_running_requests": 9}, facts, beside_log=True) == ()
    assert one.id == FindingId.ASKED_NOT_EFFECTIVE
    assert "9" in one.title
    assert "32" in one.title
    assert "45 state slots" in one.remedy


@pytest.mark.parametrize(
    ("asked", "effective"),
    [
        ({"max_running_requests": 3}, {"max_running_requests": 3}),
        ({"mem_fraction_static": "0.98"}, {"mem_fraction_static": 0.98}),
        ({"speculative_algorithm": "NEXTN"}, {"speculative_algorithm": "EAGLE"}),
        ({"kv_cache_dtype": "auto"}, {"kv_cache_dtype": "bfloat16"}),
        ({"mamba_radix_cache_strategy": "auto"}, {"mamba_radix_cache_strategy": "extra_buffer"}),
        ({"enable_metrics": True}, {"enable_metrics": True}),
        ({"api_key": "a"}, {"api_key": "b"}),
        ({"default_chat_template_kwargs": {"a": True}}, {"default_chat_template_kwargs": '{"a":true}'}),
        ({"cuda_graph_bs_decode": [1, 2]}, {"cuda_graph_bs_decode": [1]}),
        ({"port": 30000}, {}),
        ({"port": None}, {"port": 30000}),
        ({}, {"port": 30000}),
    ],
)
def test_what_is_in_effect_as_asked_raises_nothing(asked, effective):
    assert diagnose_round(asked, effective, BootFacts()) == ()


def test_draft_tokens_that_sglang_sets_itself_are_explained():
    (one,) = diagnose_round({"speculative_num_draft_tokens": 8}, {"speculative_num_draft_tokens": 4}, BootFacts())
    assert "speculative_num_steps + 1" in one.remedy


def test_parsers_of_another_family_are_told_before_the_start():
    fitting = {"tool_call_parser": "qwen3_coder", "reasoning_parser": "qwen3"}
    assert FindingId.PARSER_MISMATCH not in found(R01 | fitting)
    assert FindingId.PARSER_MISMATCH not in found(R01)
    wrong = found(R01 | fitting | {"tool_call_parser": "qwen25"})[FindingId.PARSER_MISMATCH]
    assert (wrong.severity, wrong.flags) == (Severity.WARNING, {"tool_call_parser": "qwen3_coder"})
    alone = found(R01 | {"reasoning_parser": "qwen3"})[FindingId.PARSER_MISMATCH]
    assert (alone.severity, alone.flags) == (Severity.NOTE, {"tool_call_parser": "qwen3_coder"})


def test_a_cache_tier_in_host_memory_is_a_known_fault_with_states_only():
    tier = {"enable_hierarchical_cache": True}
    assert found(R01 | tier)[FindingId.UPSTREAM_FAULT].flags == {"enable_hierarchical_cache": None}
    dense = {"mem_fraction_static": 0.8, "enable_metrics": True} | tier
    assert FindingId.UPSTREAM_FAULT not in found(dense, "qwen3-dense-small")


def test_a_pool_below_the_context_comes_with_the_change_that_mends_it():
    short = R01 | {"mamba_full_memory_ratio": 2.5}
    mended = found(short)[FindingId.POOL_BELOW_CONTEXT]
    assert plan(inputs(short | mended.flags)).kv_tokens >= 262_144
