"""Needs to flags on the 48 GB card of the recordings."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from planner_cases import inputs_for

from tuner.planner import CannotPlan, PlanInputs
from tuner.planner.need import Need
from tuner.planner.solve import solve

BASE = {
    "mem_fraction_static": 0.86,
    "kv_cache_dtype": "fp8_e4m3",
    "mamba_ssm_dtype": "bfloat16",
    "max_running_requests": 4,
    "cuda_graph_backend_prefill": "disabled",
}


def card(**flags: Any) -> PlanInputs:
    return inputs_for("qwen3.8-27b-fp8-text", "0.5.17", 46.83, 19.29, **(BASE | flags))


def test_a_need_that_is_met_changes_nothing() -> None:
    solution = solve(card(), Need(input_tokens=60_000, agents=3))
    assert solution.met and solution.flags == {} and solution.reasons == ()


def test_three_agents_of_a_hundred_thousand_tokens_take_one_flag_the_ratio() -> None:
    solution = solve(card(), Need(input_tokens=100_000, agents=3))
    assert solution.met
    assert list(solution.flags) == ["mamba_full_memory_ratio"]
    assert solution.plan.kv_tokens >= 300_000 and solution.plan.mamba_slots >= 10
    assert len(solution.reasons) == 1


def test_more_agents_raise_the_requests_and_say_why() -> None:
    solution = solve(card(), Need(input_tokens=60_000, agents=5))
    assert solution.met
    assert solution.flags["max_running_requests"] == 6
    assert "5 agents at once need one request more" in solution.reasons[0]


def test_float32_states_are_halved_only_when_the_ratio_cannot_do_it() -> None:
    inputs = card(mamba_ssm_dtype="float32")
    assert "mamba_ssm_dtype" not in solve(inputs, Need(input_tokens=100_000, agents=3)).flags
    assert solve(inputs, Need(input_tokens=50_000, agents=3, warm_prefixes=4)).met


def test_what_does_not_fit_gives_the_nearest_and_what_is_missing() -> None:
    solution = solve(card(), Need(input_tokens=200_000, agents=8, warm_prefixes=2))
    assert not solution.met
    assert solution.plan.fits
    # Eight inputs, an answer token and one ahead of it each, and two warm conversations.
    assert solution.missing == (f"The KV pool holds {solution.plan.kv_tokens:,} tokens, 2,000,016 are needed at once.",)


def test_a_headroom_that_is_asked_for_is_left() -> None:
    solution = solve(card(mem_fraction_static=0.98), Need(input_tokens=50_000, agents=2, headroom_gib=6.0))
    assert solution.met and solution.plan.ready_free_gib >= 6.0
    assert solution.flags["mem_fraction_static"] < 0.98


def test_speculation_is_given_up_last_and_only_when_it_must() -> None:
    spec = {
        "speculative_algorithm": "NEXTN",
        "speculative_num_steps": 1,
        "mamba_radix_cache_strategy": "extra_buffer",
        "mem_fraction_static": 0.98,
        "draft_returned_gib": 4.63,
    }
    inputs = inputs_for("qwen3.8-27b-fp8-text", "0.5.17", 46.83, 13.76, **(BASE | spec))
    kept = solve(inputs, Need(input_tokens=80_000, agents=3, headroom_gib=4.0))
    assert kept.met and "speculative_algorithm" not in kept.flags
    dropped = solve(inputs, Need(input_tokens=150_000, agents=3, headroom_gib=2.0))
    assert dropped.met and dropped.flags["speculative_algorithm"] is None


def test_a_plain_model_is_solved_by_the_fraction_alone() -> None:
    inputs = inputs_for("qwen3-dense-small", "0.5.17", 22.0, 21.7, mem_fraction_static=0.1, disable_cuda_graph=True)
    solution = solve(inputs, Need(input_tokens=40_000, agents=8, headroom_gib=2.0))
    assert solution.met and list(solution.flags) == ["mem_fraction_static"]


def test_a_context_length_below_the_need_is_dropped() -> None:
    solution = solve(card(context_length=32_768), Need(input_tokens=60_000, agents=2))
    assert solution.met and solution.flags["context_length"] is None


def test_an_input_beyond_the_models_context_is_missing_not_met() -> None:
    solution = solve(card(), Need(input_tokens=300_000))
    assert not solution.met
    assert any("longest input" in sentence for sentence in solution.missing)


@pytest.mark.parametrize(
    ("need", "sentence"),
    [
        (Need(input_tokens=0), "The longest input is 0"),
        (Need(input_tokens=1, agents=0), "The number of agents is 0"),
        (Need(input_tokens=1, warm_prefixes=-1), "The number of warm conversations is -1"),
        (Need(input_tokens=1, headroom_gib=-2.0), "The headroom is -2.0 GiB"),
    ],
)
def test_a_need_without_sense_is_told(need: Need, sentence: str) -> None:
    with pytest.raises(CannotPlan) as caught:
        solve(card(), need)
    assert sentence in str(caught.value)


def test_what_is_to_be_kept_is_kept_and_the_rest_is_missing() -> None:
    spec = {"speculative_algorithm": "NEXTN", "speculative_num_steps": 1, "draft_returned_gib": 4.63}
    inputs = inputs_for("qwen3.8-27b-fp8-text", "0.5.17", 46.83, 13.76, **(BASE | spec))
    need = Need(input_tokens=150_000, agents=3, headroom_gib=2.0)
    kept = solve(inputs, need, keep=("speculative_", "mem_fraction_static"))
    assert not kept.met and kept.missing
    assert not any(name.startswith(("speculative_", "mem_fraction")) for name in kept.flags)


def test_prefill_graphs_are_left_out_only_where_their_memory_is_needed() -> None:
    inputs = card(cuda_graph_backend_prefill=None)
    flags = {name: value for name, value in inputs.flags.items() if value is not None}
    inputs = msgspec.structs.replace(inputs, flags=flags)
    with_graphs = solve(inputs, Need(input_tokens=100_000, agents=3, headroom_gib=2.0))
    assert with_graphs.met and "cuda_graph_backend_prefill" not in with_graphs.flags
    without = solve(inputs, Need(input_tokens=148_000, agents=3, headroom_gib=4.4))
    assert without.met and without.flags["cuda_graph_backend_prefill"] == "disabled"


def test_answers_are_held_beside_the_inputs() -> None:
    need = Need(input_tokens=100_000, agents=3, output_tokens=8_000)
    solution = solve(card(), need)
    assert solution.met and solution.plan.kv_tokens >= 3 * 108_000
    assert solve(card(), Need(input_tokens=262_000, agents=1, output_tokens=8_000)).missing
