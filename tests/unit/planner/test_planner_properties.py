"""What holds for any flags and any memory."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from planner_cases import inputs_for

from tuner.planner import CannotPlan, plan
from tuner.planner.model import GIB
from tuner.planner.need import Need, shortfalls
from tuner.planner.resolve import pin_draft
from tuner.planner.solve import solve

MODELS = (
    "qwen3.8-27b-fp8-text",
    "qwen3.8-27b-fp8",
    "qwen3-next-80b-a3b-fp8",
    "hybrid-tiny",
    "qwen3-dense-small",
    "kimi-linear-48b-a3b",
    "nemotron-nano-9b-v2",
    "falcon-h1-1.5b",
)
versions = st.integers(9, 25).map(lambda patch: f"0.5.{patch}")


@st.composite
def some_flags(draw: st.DrawFn) -> dict[str, Any]:
    flags: dict[str, Any] = {"mem_fraction_static": draw(st.integers(100, 990)) / 1000}
    optional: dict[str, st.SearchStrategy[Any]] = {
        "mamba_full_memory_ratio": st.floats(0.01, 20),
        "max_mamba_cache_size": st.integers(1, 3000),
        "max_running_requests": st.integers(1, 512),
        "disable_radix_cache": st.just(True),
        "page_size": st.sampled_from((1, 16, 64)),
        "kv_cache_dtype": st.sampled_from(("auto", "fp8_e4m3", "bfloat16")),
        "mamba_ssm_dtype": st.sampled_from(("float32", "bfloat16")),
        "mamba_radix_cache_strategy": st.sampled_from(("auto", "no_buffer", "extra_buffer", "extra_buffer_lazy")),
        "speculative_algorithm": st.sampled_from(("NEXTN", "EAGLE", "NGRAM")),
        "speculative_num_steps": st.integers(1, 7),
        "max_total_tokens": st.integers(1000, 2_000_000),
        "chunked_prefill_size": st.sampled_from((2048, 4096, 8192)),
        "disable_cuda_graph": st.just(True),
    }
    for name in sorted(draw(st.sets(st.sampled_from(sorted(optional)), max_size=6))):
        flags[name] = draw(optional[name])
    return flags


@given(
    model=st.sampled_from(MODELS),
    version=versions,
    flags=some_flags(),
    before=st.floats(8, 180),
    weights=st.floats(0.01, 0.99),
)
@settings(max_examples=400, deadline=None)
def test_budgets_are_never_negative_and_parts_never_exceed_the_card(
    model: str, version: str, flags: dict[str, Any], before: float, weights: float
) -> None:
    result = plan(inputs_for(model, version, before, before * (1 - weights), **flags))
    assert min(result.mamba_slots, result.kv_tokens, result.max_running_requests, result.longest_input_tokens) >= 0
    assert min(result.mamba_gib, result.kv_gib, result.spec_buffer_gib, result.reserve_gib) >= 0
    assert all(term.gib >= 0 for term in result.terms)
    assert result.terms[-1].name == "free"
    if result.fits:
        assert result.kv_tokens > 0 and result.max_running_requests > 0 and not result.refusal
        assert result.lowest_free_gib >= 0
        whole = sum(term.gib for term in result.terms)
        assert abs(whole - (before + 0.066 + 0.604)) < 1e-6
    else:
        assert result.refusal.endswith(".") and "\n" not in result.refusal


@given(
    model=st.sampled_from(MODELS),
    version=versions,
    flags=some_flags(),
    before=st.floats(8, 180),
    weights=st.floats(0.01, 0.9),
    more=st.integers(1, 300),
)
@settings(max_examples=400, deadline=None)
def test_more_fraction_is_never_fewer_slots_nor_fewer_tokens_by_more_than_a_slot(
    model: str, version: str, flags: dict[str, Any], before: float, weights: float, more: int
) -> None:
    inputs = inputs_for(model, version, before, before * (1 - weights), **flags)
    higher = min(0.99, flags["mem_fraction_static"] + more / 1000)
    low = plan(inputs)
    high = plan(msgspec.structs.replace(inputs, flags=flags | {"mem_fraction_static": higher}))
    assert high.mamba_slots >= low.mamba_slots
    # One more slot may come with one more admitted request, whose drafts' states are paid too.
    drafts = high.in_force.get("speculative_num_draft_tokens", 0)
    page = high.in_force["page_size"]
    slack = low.bytes_per_slot * (1 + drafts) / low.bytes_per_token + 2 * page
    assert high.kv_tokens >= low.kv_tokens - slack


@given(
    model=st.sampled_from(MODELS),
    version=versions,
    flags=some_flags(),
    before=st.floats(16, 180),
    weights=st.floats(0.05, 0.9),
    input_tokens=st.integers(1, 262_000),
    agents=st.integers(1, 64),
    warm=st.integers(0, 32),
    headroom=st.floats(0, 8),
)
@settings(max_examples=250, deadline=None)
def test_whatever_solve_proposes_plan_confirms(
    model: str,
    version: str,
    flags: dict[str, Any],
    before: float,
    weights: float,
    input_tokens: int,
    agents: int,
    warm: int,
    headroom: float,
) -> None:
    inputs = inputs_for(model, version, before, before * (1 - weights), **flags)
    need = Need(input_tokens=input_tokens, agents=agents, warm_prefixes=warm, headroom_gib=headroom)
    solution = solve(inputs, need)
    changed = {name: value for name, value in (flags | solution.flags).items() if value is not None}
    assert solution.inputs.flags == changed
    again = plan(solution.inputs)
    assert again == solution.plan == plan(msgspec.structs.replace(pin_draft(inputs), flags=changed))
    missing = shortfalls(again, need, headroom)
    assert solution.met == (not missing)
    assert solution.missing == missing
    if not shortfalls(plan(inputs), need, headroom):
        assert solution.met and not solution.flags
    for sentence in (*solution.reasons, *solution.missing):
        assert sentence.endswith(".") and "\n" not in sentence


@given(flags=some_flags(), version=versions, before=st.floats(30, 180), weights=st.floats(0.05, 0.7))
@settings(max_examples=150, deadline=None)
def test_both_pools_fit_into_what_the_fraction_leaves(
    flags: dict[str, Any], version: str, before: float, weights: float
) -> None:
    try:
        result = plan(inputs_for("qwen3.8-27b-fp8", version, before, before * (1 - weights), **flags))
    except CannotPlan:
        return
    if result.fits:
        static = (before + 0.066) * flags["mem_fraction_static"]
        pools = (result.mamba_slots * result.bytes_per_slot + result.kv_tokens * result.bytes_per_token) / GIB
        assert pools <= static


@given(
    model=st.sampled_from(MODELS),
    version=versions,
    flags=some_flags(),
    before=st.floats(8, 180),
    weights=st.floats(0.01, 0.9),
    after_off=st.floats(-0.005, 0.005),
    before_off=st.floats(-0.005, 0.005),
)
@settings(max_examples=250, deadline=None)
def test_the_range_of_two_decimals_holds_every_start_that_prints_them(
    model: str,
    version: str,
    flags: dict[str, Any],
    before: float,
    weights: float,
    after_off: float,
    before_off: float,
) -> None:
    shown = plan(inputs_for(model, version, before, before * (1 - weights), **flags))
    real = plan(inputs_for(model, version, before + before_off, before * (1 - weights) + after_off, **flags))
    assert shown.mamba_slots_low is not None and shown.mamba_slots_high is not None
    assert shown.kv_tokens_low is not None and shown.kv_tokens_high is not None
    assert shown.mamba_slots_low <= real.mamba_slots <= shown.mamba_slots_high
    assert shown.kv_tokens_low <= real.kv_tokens <= shown.kv_tokens_high
